"""The optimal plans against all plans of tiny graphs, and `steady` against the optimal plans."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations, product

import pytest

from llada_jax.swap.address_space import Plan, Transfer, assemble
from llada_jax.swap.graph import Graph, Operator
from llada_jax.swap.plan_checker import problems
from llada_jax.swap.planners import planner
from llada_jax.swap.stall_times import least_step_ns, stall_of
from tests.swap.small_graphs import FIGURE_10, chain, one_buffer, tight_instance

pytest.importorskip("ortools", reason="needs OR-tools, of the group `test`")
from tests.swap.exact import exact

TINY = {
    "shares": (chain([3, 2, 2], [40, 30, 20], [20, 30, 10]), 5),
    "one_address": (chain([3, 3, 2], [10, 50, 30], [20, 20, 30]), 4),
    "grouped": (Graph(chain([1, 2, 3], [20, 60, 40], [10, 10, 10]).operators, map_ns=30), 4),
    "ordered": (
        Graph((Operator("a", 3, 50, 40), Operator("b", 1, 10, 10), Operator("c", 2, 9, 30, (0,)))),
        4,
    ),
}


def all_plans(graph: Graph, room: int) -> Iterator[Plan]:
    """Yields all plans with one address per operator: all offsets, orders and transfers."""
    n, sizes = len(graph), [op.weight_bytes for op in graph.operators]
    budget = one_buffer(room)
    orders = [order for order in permutations(range(n)) if graph.is_order(order)]
    for offsets in product(*(range(room - size + 1) for size in sizes)):
        spans = [range(at, at + size) for at, size in zip(offsets, sizes, strict=True)]
        shared = {i for i in range(n) for j in range(n) if i != j and set(spans[i]) & set(spans[j])}
        for order, joins in product(orders, product((False, True), repeat=n)):
            groups: list[list[int]] = []
            for i in filter(shared.__contains__, order):
                groups[len(groups) - (joins[i] and len(groups) > 0) :] = (
                    [[*groups[-1], i]] if joins[i] and groups else [[i]]
                )
            transfers = [Transfer(tuple(group), None) for group in groups]
            addresses = dict(enumerate(offsets))
            yield assemble(graph, budget, order, addresses, [room], displaced=transfers)


@pytest.mark.parametrize("name", TINY)
def test_the_optimum_is_the_best_of_all_plans_of_a_tiny_graph(name: str):
    graph, room = TINY[name]
    budget = one_buffer(room)
    valid = (plan for plan in all_plans(graph, room) if not problems(graph, budget, plan))
    least = min(stall_of(graph, plan) for plan in valid)
    optimum = exact(graph, budget, reorder=True)
    assert optimum.is_proven
    assert optimum.step_ns - 1 < graph.compute_ns + least <= optimum.step_ns


def step_ns_of_valid(graph: Graph, budget, steps: int, reorder: bool = True) -> Fraction:
    """Returns the step of the proven optimum, which checker and exact stall confirm."""
    optimum = exact(graph, budget, reorder=reorder, steps=steps)
    assert problems(optimum.graph, budget, optimum.plan) == []
    assert optimum.is_proven and least_step_ns(graph, budget) <= optimum.step_ns
    exact_ns = graph.compute_ns + stall_of(optimum.graph, optimum.plan) / steps
    assert optimum.step_ns - 1 < exact_ns <= optimum.step_ns
    return optimum.step_ns


def test_addresses_that_alternate_between_two_steps_save_time():
    """Of three equal operators two fit. With one address each, two of them take turns."""
    graph, budget = chain([1] * 3, [12, 36, 12], [12] * 3), one_buffer(2)
    assert step_ns_of_valid(graph, budget, 1) == 72
    assert step_ns_of_valid(graph, budget, 2) == graph.compute_ns == 60


def test_offsets_are_multiples_of_the_alignment():
    graph = chain(
        [size * 4096 for size in (3, 4, 4, 1)], [3000, 4000, 8000, 5000], [4000, 6000, 4000, 3000]
    )
    assert step_ns_of_valid(graph, one_buffer(7 * 4096, 4096), 1, reorder=False) == 27000


@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(30, 150), marks=pytest.mark.slow)])
def test_150_aligned_plans_are_valid(seeds: range):
    for seed in seeds:
        graph, budget = tight_instance(seed, 4, alignment=4096)
        assert step_ns_of_valid(graph, budget, steps=1) >= graph.compute_ns


def ratios_to_optimum(seeds: range, max_operators: int) -> list[float]:
    """Returns the steps of `steady`, relative to the optimum with addresses of two steps."""
    ratios = []
    for seed in seeds:
        graph, budget = tight_instance(seed, max_operators)
        steady = graph.compute_ns + stall_of(graph, planner("steady")(graph, budget))
        greedy = graph.compute_ns + stall_of(graph, planner("greedy")(graph, budget))
        least = step_ns_of_valid(graph, budget, 2)
        assert least - 1 < steady <= greedy
        ratios.append(float(steady / least))
    return ratios


def test_steady_is_near_the_optimum():
    ratios = ratios_to_optimum(range(1000, 1008), max_operators=5)
    assert sum(ratios) / len(ratios) <= 1.05


@pytest.mark.slow
def test_steady_is_near_the_optimum_of_200_graphs():
    """These graphs are the hardest ones for slots: operators are irregular, and the optimum may
    reorder them."""
    ratios = ratios_to_optimum(range(200), max_operators=6)
    mean, equal = sum(ratios) / len(ratios), sum(ratio <= 1 for ratio in ratios)
    print(f"steady over the optimum: {mean:.4f}, at most {max(ratios):.3f}, {equal} equal")
    assert mean <= 1.18


def test_weights_in_several_buffers_are_refused():
    two_buffers = one_buffer(200).__class__(session_bytes=90, max_buffer_bytes=50, alignment=1)
    with pytest.raises(ValueError, match="max_buffer_bytes is 50; allowed: all weights in one"):
        exact(FIGURE_10, two_buffers)
