"""Planners return valid plans or a reason, and `steady` is never worse than `greedy`."""

import pytest
from hypothesis import given, settings

from llada_jax.phones.swap_plan import mapping_path
from llada_jax.swap.address_space import MIB, Budget, PlanError
from llada_jax.swap.graph import Graph, Operator, kv_bytes_per_token, model_graph
from llada_jax.swap.greedy_planner import Greedy, ResidentRegion, alternate
from llada_jax.swap.plan_checker import problems
from llada_jax.swap.planners import PLANNERS, planner, steady
from llada_jax.swap.stall_times import least_step_ns, stall_of
from tests.phones.small import PHONE
from tests.swap.small_graphs import FIGURE_10, budgets, chain, graphs, one_buffer
from tests.swap.test_graph import LLADA_8B


@settings(max_examples=60)
@given(graphs(), budgets())
def test_plans_are_valid_and_above_the_bound_and_steady_is_the_best(graph: Graph, budget: Budget):
    stalls = {}
    for name, plan_with in PLANNERS.items():
        try:
            plan = plan_with(graph, budget)
        except PlanError:
            continue
        assert problems(graph, budget, plan) == []
        stalls[name] = stall_of(graph, plan)
    least = least_step_ns(graph, budget)
    assert all(least <= graph.compute_ns + stall for stall in stalls.values())
    assert stalls.get("steady") == min(stalls.values(), default=None)


@settings(max_examples=60)
@given(graphs(), budgets())
def test_steady_plans_every_graph_whose_largest_operator_fits(graph: Graph, budget: Budget):
    try:
        steady(graph, budget)
    except PlanError as error:
        assert any(text in str(error) for text in ("needs", "temporaries take")), error


def test_figure_10_of_the_paper():
    """The rounds of arXiv 2606.13740. Its last round has E, but only D is left."""
    region = ResidentRegion(30, 1, 30)
    rounds = alternate(FIGURE_10, one_buffer(90).sizes(FIGURE_10), region, slot_bytes=30)
    assert [tuple("".join("ABCDE"[i] for i in part) for part in round_) for round_ in rounds] == [
        ("A", "B"),  # T(B) = 1 < C(A) = 2 < T(B) + T(C) = 3
        ("C", "E"),  # before D, since T(D) = 3 > C(C) = 2
        ("D", ""),
    ]


def test_greedy_rounds_respect_dependencies():
    operators = list(FIGURE_10.operators)
    operators[4] = Operator("E", 10, 1, 1, depends=(3,))
    graph = Graph(tuple(operators))
    rounds = alternate(graph, one_buffer(90).sizes(graph), ResidentRegion(30, 1, 30), slot_bytes=30)
    assert [i for residents, temporaries in rounds for i in (*residents, *temporaries)] == [
        0,
        1,
        2,
        3,
        4,
    ]


def test_the_greedy_plan_of_figure_10_in_a_loop():
    """With 30 MB for residents and two slots of 10 MB, A, C and D displace each other."""
    plan = Greedy(slot_bytes=10)(FIGURE_10, one_buffer(50))
    assert plan.order == (0, 1, 2, 4, 3)
    assert sorted(plan.staged) == [0, 2, 3]
    assert stall_of(FIGURE_10, plan) == (2 - 1) + (3 - 1) + 3
    steady_plan = planner("steady")(FIGURE_10, one_buffer(50))
    assert problems(FIGURE_10, one_buffer(50), steady_plan) == []
    assert stall_of(FIGURE_10, steady_plan) <= stall_of(FIGURE_10, plan)


def test_planners_stage_nothing_if_everything_fits():
    for name, plan_with in PLANNERS.items():
        plan = plan_with(FIGURE_10, one_buffer(110))
        assert plan.transfers == () and plan.resident_bytes(FIGURE_10) == 110, name


@pytest.mark.parametrize("name", PLANNERS)
def test_a_budget_below_the_largest_operator_is_refused(name: str):
    budget = one_buffer(39, kv_bytes_per_token=2, tokens=5)
    message = r"operator 'A' needs 30 bytes at once; the budget leaves 29 \(of 39, keys, values and"
    with pytest.raises(PlanError, match=message):
        planner(name)(FIGURE_10, budget)


@pytest.mark.parametrize("name", PLANNERS)
def test_keys_and_values_that_leave_no_room_are_refused(name: str):
    with pytest.raises(PlanError, match="the budget leaves 0"):
        planner(name)(FIGURE_10, one_buffer(60, kv_bytes_per_token=1, tokens=60))
    with pytest.raises(PlanError, match="keys, values and temporaries take 61 bytes in 2 buffers"):
        planner(name)(FIGURE_10, one_buffer(60, kv_bytes_per_token=1, tokens=61))


def test_invalid_settings_are_refused():
    allowed = "allowed: 'greedy', 'steady'"
    with pytest.raises(ValueError, match=f"planner is 'best'; {allowed}"):
        planner("best")
    with pytest.raises(ValueError, match="slot_bytes is 0; allowed: above 0, or None"):
        Greedy(slot_bytes=0)


@pytest.mark.parametrize("path", ["immediate", "copy", "delayed"])
def test_llada_8b_runs_without_a_stall(path: str):
    """The greedy plan stalls unless mappings are nearly free: its temporaries are all in one part
    of the step, and two slots do not hold them."""
    graph = model_graph(LLADA_8B, weight_bits=4.5, step_ns=478_100_000)
    graph = mapping_path(PHONE, path).price(graph)
    budget = Budget(kv_bytes_per_token=kv_bytes_per_token(LLADA_8B), tokens=208)
    plans = {name: planner(name)(graph, budget) for name in ("greedy", "steady")}
    assert problems(graph, budget, plans["steady"]) == []
    assert stall_of(graph, plans["steady"]) == 0
    assert (stall_of(graph, plans["greedy"]) > 0.2 * graph.compute_ns) == (path != "delayed")
    assert plans["steady"].resident_bytes(graph) < 3200 * MIB < graph.weight_bytes


def test_planning_is_deterministic():
    graph = chain([7, 3, 5, 4, 6, 2], [3, 1, 4, 1, 5, 2], [4, 3, 2, 6, 1, 5])
    budget = one_buffer(14)
    assert steady(graph, budget) == steady(graph, budget)
