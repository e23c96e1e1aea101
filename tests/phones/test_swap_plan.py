"""Swap plans on a phone: costs of the mapping paths, and runs with a plan's stalls."""

import math

import pytest

from llada_jax.phones.graphs import graphs_of
from llada_jax.phones.profile import load_profile
from llada_jax.phones.simulate import ForwardTimer, simulate
from llada_jax.phones.swap_plan import PATHS, mapping_path, plan_swaps
from llada_jax.phones.system import System
from llada_jax.phones.workload import blockwise
from tests.phones.small import GRAPHS, PHONE

MIB, GIB = 1 << 20, 1 << 30


def test_mapping_paths_reproduce_the_published_figures():
    paths = [mapping_path(PHONE, name) for name in ("immediate", "copy", "delayed")]
    immediate, copy, delayed = paths
    assert immediate.map_ns == pytest.approx(((29.2 + 24.4) / 2 - 1.6) * 1e6, rel=1e-3)
    for mib, seconds in ((672, 0.335), (3744, 1.830)):  # the two ends of Figure 13c
        modelled = mib * MIB / copy.bytes_per_second + copy.step_ns / 1e9
        assert modelled == pytest.approx(seconds, rel=1e-3)
    assert 7 * 768 * MIB / delayed.bytes_per_second == pytest.approx(0.70e-3, rel=0.03)
    assert math.isinf(immediate.bytes_per_second)
    assert all(path.source and path.tag for path in paths)


def test_mapping_paths_follow_the_profile():
    slower = PHONE.with_values({"mapping.copy_gbps": 1.0})
    assert mapping_path(slower, "copy").bytes_per_second == 1e9
    with pytest.raises(ValueError, match="path is 'fast'; allowed: 'immediate', 'copy', 'delayed'"):
        mapping_path(PHONE, "fast")


def test_a_run_with_a_plan_waits_for_the_plan_s_stall():
    llada, system = graphs_of("llada_8b"), System()
    cramped = PHONE.with_values({"memory.mapping_cap_mib": 1600, "mapping.copy_ms": 0.0})
    workload = blockwise(64, 32)
    workload = workload._replace(forwards=workload.forwards[1:3])
    planned = plan_swaps("greedy", workload, llada, cramped, system)
    assert planned.plan.transfers and set(PATHS) == {"remap", "swap", "delayed"}
    timer = ForwardTimer(llada, cramped, system, transfers=planned.transfers_on(cramped))
    unstaged = ForwardTimer(llada, cramped, System(runtime="wide")).latency(workload)
    assert timer.latency(workload) - unstaged == pytest.approx(2 * planned.stall_seconds, rel=1e-3)
    copied = planned.graph.weight_bytes - planned.resident_bytes
    assert sum(transfer.copied_bytes for transfer in timer.transfers.transfers) == pytest.approx(
        copied
    )
    assert timer.transfers.seconds == pytest.approx(copied / cramped.mapping.copy_gbps / 1e9)
    mapped = [mib for _, mib in planned.mapped_over(2)]
    assert len(set(mapped)) > 2 and planned.resident_bytes / MIB < min(mapped)
    assert max(mapped) <= 1600
    slower = planned.transfers_on(cramped.with_values({"mapping.copy_gbps": 1.0}))
    assert slower.transfers[0].seconds > planned.stall_seconds > 0


def test_runs_with_the_plans_of_both_planners():
    """A small model in a session that can map half of it."""
    phone = load_profile("SM8750")
    model = GRAPHS.model
    layers = model.n_layers * model.width * (2 * 96 + 3 * model.ffn_width) * 4.5 / 8 / (1 << 20)
    # Planners do not see the fixed cost per step, which was measured with gigabytes.
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
        result = simulate(workload, timer)
        assert sum(result.parts.values()) == pytest.approx(result.seconds)
        seconds[name] = result.seconds
    assert seconds["steady"] <= seconds["greedy"] * 1.001
    roomy = plan_swaps("steady", workload, GRAPHS, phone, system)
    unstaged = simulate(workload, ForwardTimer(GRAPHS, phone, System(runtime="none")))
    timer = ForwardTimer(GRAPHS, phone, system, transfers=roomy.transfers_on(phone))
    result = simulate(workload, timer)
    assert roomy.plan.transfers == ()
    assert result.seconds == pytest.approx(unstaged.seconds)


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
def test_systems_without_staging_are_refused(name, changes, message):
    with pytest.raises(ValueError, match=message):
        plan_swaps(name, blockwise(8, 32), GRAPHS, load_profile("SM8750"), System(**changes))


def test_a_budget_below_the_largest_operator_is_refused():
    tiny = load_profile("SM8750").with_values({"memory.mapping_cap_mib": 0.03})
    with pytest.raises(ValueError, match=r"planner 'steady' on SM8750: .*(needs|take) .* bytes"):
        plan_swaps("steady", blockwise(8, 32), GRAPHS, tiny, System())
