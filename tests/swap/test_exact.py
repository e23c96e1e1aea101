"""Our planner against optima: of all placings of tiny graphs, and of the constraint program."""

import sys
from fractions import Fraction
from importlib.util import find_spec
from itertools import permutations, product

import pytest

from llada_jax.swap.bound import least_step_ns
from llada_jax.swap.graph import Graph, Operator, chain
from llada_jax.swap.greedy_planner import Greedy
from llada_jax.swap.places import PlaceSearch, Placing
from llada_jax.swap.plan_checker import problems
from llada_jax.swap.planner_registry import planner
from llada_jax.swap.stall_times import stall_of
from tests.swap.exact import exact
from tests.swap.small_graphs import FIGURE_10, one_buffer, tight_instance

needs_ortools = pytest.mark.skipif(
    find_spec("ortools") is None, reason="needs the extra exact, OR-tools"
)
TINY = {
    "shares": (chain([3, 2, 2], [40, 30, 20], [20, 30, 10]), 5),
    "one_place": (chain([3, 3, 2], [10, 50, 30], [20, 20, 30]), 4),
    "grouped": (Graph(chain([1, 2, 3], [20, 60, 40], [10, 10, 10]).operators, map_ns=30), 4),
    "ordered": (
        Graph(
            (Operator("a", 3, 50, 40), Operator("b", 1, 10, 10), Operator("c", 2, 9, 30, 0, (0,)))
        ),
        4,
    ),
}


def best_of_all_placings(graph: Graph, room: int) -> Fraction:
    """The least stall, by trying every offset, order and grouping."""
    search, n = PlaceSearch(graph, one_buffer(room)), len(graph)
    offsets = [range(room - op.weight_bytes + 1) for op in graph.operators]
    orders = [order for order in permutations(range(n)) if graph.is_order(order)]
    placings = product(orders, product(*offsets), product((False, True), repeat=n))
    costs = (search.cost(Placing(*placing)) for placing in placings)
    return min(cost[0] for cost in costs if cost is not None)


@pytest.mark.parametrize("name", TINY)
def test_ours_is_the_best_of_all_placings_of_a_tiny_graph(name: str):
    graph, room = TINY[name]
    ours = stall_of(graph, planner("steady")(graph, one_buffer(room)))
    assert ours <= best_of_all_placings(graph, room)


@needs_ortools
@pytest.mark.parametrize("name", TINY)
def test_the_constraint_program_knows_all_placings(name: str):
    graph, room = TINY[name]
    optimum = exact(graph, one_buffer(room), reorder=True)
    assert optimum.step_ns == optimum.bound_ns
    assert optimum.step_ns <= graph.compute_ns + best_of_all_placings(graph, room)
    assert problems(graph, one_buffer(room), optimum.plan) == []


def compare(seeds: range, most: int) -> list[float]:
    """How much longer our steps are than the best ones, as ratios; checks all that must hold."""
    ratios = []
    for seed in seeds:
        graph, budget = tight_instance(seed, most)
        ours = graph.compute_ns + stall_of(graph, planner("steady")(graph, budget))
        optimum = exact(graph, budget, reorder=True)
        found = graph.compute_ns + stall_of(graph, optimum.plan)
        assert problems(graph, budget, optimum.plan) == []
        assert least_step_ns(graph, budget) <= optimum.bound_ns == optimum.step_ns
        assert optimum.step_ns - 1 < found <= optimum.step_ns
        assert optimum.step_ns - 1 < ours
        assert ours <= graph.compute_ns + stall_of(graph, Greedy()(graph, budget))
        ratios.append(float(ours / optimum.step_ns))
    return ratios


@needs_ortools
def test_ours_is_close_to_the_best_plans():
    ratios = compare(range(1000, 1010), most=5)
    assert sum(ratios) / len(ratios) <= 1.05


@needs_ortools
@pytest.mark.slow
def test_ours_is_close_to_the_best_plans_of_200_graphs():
    ratios = compare(range(200), most=6)
    mean, equal = sum(ratios) / len(ratios), sum(ratio <= 1 for ratio in ratios)
    print(f"our steps over the best ones: {mean:.4f}, at most {max(ratios):.3f}, {equal} equal")
    assert mean <= 1.05


@needs_ortools
def test_forty_operators_in_order():
    """With a transfer for every two operators the optimum is the bound, and it is found."""
    graph = chain([2] * 40, [30] * 40, [25] * 40)
    optimum = exact(graph, one_buffer(72), effort=20)
    assert problems(graph, one_buffer(72), optimum.plan) == []
    assert optimum.step_ns == graph.compute_ns == least_step_ns(graph, one_buffer(72))


@needs_ortools
def test_what_the_program_cannot_do_is_refused():
    with_outputs = Graph((Operator("a", 5, 1, 1, 1), Operator("b", 5, 1, 1, 1)))
    with pytest.raises(ValueError, match="reorder is True; allowed: False, with temporaries"):
        exact(with_outputs, one_buffer(8), reorder=True)
    assert exact(with_outputs, one_buffer(8)).step_ns == 4
    two_buffers = one_buffer(200).__class__(session_bytes=90, max_buffer_bytes=50, alignment=1)
    with pytest.raises(ValueError, match="max_buffer_bytes is 50; allowed: all weights in one"):
        exact(FIGURE_10, two_buffers)


def test_without_or_tools_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(ImportError, match=r"install llada_jax\[exact\]"):
        exact(FIGURE_10, one_buffer(60))
