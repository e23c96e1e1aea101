"""Ways to make weights visible cost what their sources say, in one place for rule and planners."""

import math

import pytest

from llada_jax.phone.swap_plan import mapping_path, plan_swaps
from llada_jax.phone.system import System
from llada_jax.phone.workload import Forward
from tests.phone.small import GRAPHS, PHONE

MIB, GIB = 1 << 20, 1 << 30


def test_paths_cost_what_their_sources_say():
    paths = [mapping_path(PHONE, name) for name in ("immediate", "copy", "delayed")]
    immediate, copy, delayed = paths
    assert immediate.map_ns == pytest.approx(((29.2 + 24.4) / 2 - 1.6) * 1e6, rel=1e-3)
    for mib, seconds in ((672, 0.335), (3744, 1.830)):  # the two ends of Figure 13c
        found = mib * MIB / copy.bytes_per_second + copy.step_ns / 1e9
        assert found == pytest.approx(seconds, rel=1e-3)
    assert 7 * 768 * MIB / delayed.bytes_per_second == pytest.approx(0.70e-3, rel=0.03)
    assert math.isinf(immediate.bytes_per_second)
    assert all(path.source and path.tag for path in paths)


def test_another_phones_paths_are_its_own():
    slower = PHONE.with_values({"mapping.copy_gbps": 1.0})
    assert mapping_path(slower, "copy").bytes_per_second == 1e9
    with pytest.raises(ValueError, match="path is 'fast'; allowed: 'immediate', 'copy', 'delayed'"):
        mapping_path(PHONE, "fast")


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
        plan_swaps(name, Forward(32, 32, 32), 64, GRAPHS, PHONE, System(**changes))
