"""Ways to make weights visible cost what their sources say, in one place for rule and planners."""

import math

import pytest

from llada_jax.phone.graphs import graphs_of
from llada_jax.phone.swap_plan import PATHS, mapping_path, plan_swaps
from llada_jax.phone.system import System
from llada_jax.phone.workload import blockwise
from tests.phone.small import PHONE

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


def test_a_planned_run_pays_what_a_step_costs_once():
    workload, llada = blockwise(64, 32), graphs_of("llada_8b")
    free = PHONE.with_values({"mapping.copy_ms": 0.0})
    planned = plan_swaps("steady", workload, llada, PHONE, System())
    assert planned.plan.transfers and set(PATHS) == {"remap", "swap", "delayed"}
    more = planned.transfers_on(PHONE).seconds - planned.transfers_on(free).seconds
    assert more == pytest.approx(PHONE.mapping.copy_ms / 1e3, rel=1e-3)
