"""A plan on the timeline: as fast as the plan says where nothing else is busy, and never faster."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from llada_jax.phone.forward_timer import ForwardTimer
from llada_jax.phone.profile import load_profile
from llada_jax.phone.simulate import simulate
from llada_jax.phone.step_tasks import StepWork, run_step
from llada_jax.phone.swap_plan import plan_swaps
from llada_jax.phone.system import System
from llada_jax.phone.timeline import LaneTask, breakdown
from llada_jax.phone.transfers import transfers_of_plan
from llada_jax.phone.workload import blockwise
from llada_jax.swap.address_budget import PlanError
from llada_jax.swap.planner_registry import planner
from llada_jax.swap.stall_times import stall_of
from tests.phone.small import GRAPHS
from tests.swap.small_graphs import FIGURE_10, budgets, chain, graphs, one_buffer

HEAD = LaneTask("head", "cpu", 0.0)


def step(graph, plan, head: LaneTask = HEAD, copies: bool = False, gbps: float = 1e9):
    """A step in a loop; times of the graph count as nanoseconds."""
    seconds = graph.compute_ns / 1e9
    body = LaneTask("body", "npu", seconds, parts={"matrix": seconds})
    return run_step(StepWork([body], [head]), transfers_of_plan(graph, plan, copies=copies), gbps)


@pytest.mark.parametrize("name", ["greedy", "steady"])
@pytest.mark.parametrize("size", [50, 60, 80, 110])
def test_figure_10_takes_what_each_planner_says(name, size):
    plan = planner(name)(FIGURE_10, one_buffer(size))
    wanted = FIGURE_10.compute_ns + stall_of(FIGURE_10, plan)
    assert step(FIGURE_10, plan).seconds * 1e9 == pytest.approx(float(wanted))


@settings(max_examples=40)
@given(graphs(), budgets(), st.sampled_from(["greedy", "steady"]))
def test_parts_add_up_and_compute_is_all_there(graph, budget, name):
    try:
        plan = planner(name)(graph, budget)
    except PlanError:
        assume(False)
    found = step(graph, plan)
    parts = breakdown(found)
    assert sum(parts.values()) == pytest.approx(found.seconds, abs=1e-15)
    assert parts.get("matrix", 0) * 1e9 == pytest.approx(graph.compute_ns)
    assert found.seconds * 1e9 >= graph.compute_ns * (1 - 1e-9)


def test_the_next_step_is_prefetched_while_the_head_runs():
    """Two slots, three equal layers: the first two are staged before the step begins, and the third
    while the second one runs, which is 2 ns too short."""
    graph = chain([4, 4, 4], [10, 10, 10], [12, 12, 12])
    plan = planner("greedy")(graph, one_buffer(8))
    assert len(plan.transfers) == 3
    alone, beside = step(graph, plan), step(graph, plan, LaneTask("head", "cpu", 40e-9))
    assert alone.seconds * 1e9 == pytest.approx(36)
    assert beside.seconds * 1e9 == pytest.approx(30 + 40 + 2)
    ahead = [event for event in beside.events if "for the next step" in event.task.name]
    assert ahead and all(event.start >= 0 and event.end <= 72.1e-9 for event in ahead)


def test_copies_draw_from_memory_and_mappings_do_not():
    graph = chain([1000, 1000, 1000], [10, 10, 10], [9, 9, 9])
    plan = planner("greedy")(graph, one_buffer(2000))
    quick, slow = (step(graph, plan, copies=copies, gbps=50) for copies in (False, True))
    assert slow.seconds > 2 * quick.seconds


def test_a_planner_s_plan_prices_a_run():
    """A small model in a session that holds half of it."""
    phone = load_profile("SM8750")
    model = GRAPHS.model
    layers = model.n_layers * model.width * (2 * 96 + 3 * model.ffn_width) * 4.5 / 8 / (1 << 20)
    # What a step's copies cost once is of gigabytes, and no planner sees it.
    small = phone.with_values(
        {
            "memory.mapping_cap_mib": 0.6 * layers + 0.1,
            "mapping.copy_gbps": 0.05,
            "mapping.copy_ms": 0.0,
        }
    )
    workload, system = blockwise(8, 32), System()
    seconds = {}
    for name in ("greedy", "steady"):
        planned = plan_swaps(name, workload, GRAPHS, small, system)
        timer = ForwardTimer(GRAPHS, small, system, transfers=planned.transfers_on(small))
        found = simulate(workload, timer)
        assert sum(found.parts.values()) == pytest.approx(found.seconds)
        seconds[name] = found.seconds
    assert seconds["steady"] <= seconds["greedy"] * 1.001
    roomy = plan_swaps("steady", workload, GRAPHS, phone, system)
    bare = simulate(workload, ForwardTimer(GRAPHS, phone, System(runtime="none")))
    timer = ForwardTimer(GRAPHS, phone, system, transfers=roomy.transfers_on(phone))
    found = simulate(workload, timer)
    assert roomy.plan.transfers == ()
    assert found.seconds == pytest.approx(bare.seconds)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("best", {}, "planner is 'best'; allowed: 'greedy', 'steady'"),
        (
            "steady",
            {"runtime": "wide"},
            "runtime is 'wide'; allowed with a planner: 'remap', 'swap'",
        ),
        ("steady", {"body": "cpu"}, "body is 'cpu'; allowed with a planner: 'npu'"),
    ],
)
def test_settings_that_no_plan_suits_are_named(name, changes, message):
    with pytest.raises(ValueError, match=message):
        plan_swaps(name, blockwise(8, 32), GRAPHS, load_profile("SM8750"), System(**changes))


def test_a_budget_smaller_than_the_largest_operator_is_named_with_the_phone():
    tiny = load_profile("SM8750").with_values({"memory.mapping_cap_mib": 0.03})
    with pytest.raises(ValueError, match=r"planner 'steady' on SM8750: .*(needs|take) .* bytes"):
        plan_swaps("steady", blockwise(8, 32), GRAPHS, tiny, System())
