"""Doubts add in quadrature, except for counted numbers and cliffs."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from llada_jax.phones.profile import Profile, Session
from llada_jax.phones.uncertainty import CLIFFS, DOUBT, RunTimer, UncertainLatency, shifted_profiles
from tests.phones.small import PHONE


def uncertain(latency: Callable[[Profile], float], **spreads) -> UncertainLatency:
    timer = RunTimer(PHONE, lambda p: SimpleNamespace(latency=lambda _: latency(p)), **spreads)
    return timer.uncertain(None)


def test_uncertainties_add_in_quadrature():
    latency = uncertain(lambda p: p.memory.dram_gbps * p.power.idle_w**2)
    tags = [PHONE.numbers[path].tag for path in ("memory.dram_gbps", "power.idle_w")]
    doubts = [math.log(1 + DOUBT[tag]) for tag in tags]
    assert latency.relative == pytest.approx(math.hypot(doubts[0], 2 * doubts[1]))
    assert [name for name, _ in latency.largest] == ["power.idle_w", "memory.dram_gbps"]
    low, high = latency.bounds
    assert low * high == pytest.approx(latency.seconds**2) and 0 < low < latency.seconds


def test_counted_numbers_are_not_shifted_and_cliffs_in_both_directions():
    shifted = shifted_profiles(PHONE)
    numbers = [shift.number for shift in shifted]
    assert "npu.llada_cpp.tile_rows" not in numbers and "session.npu_slowdown" not in numbers
    cliffs = [shift.profile.memory.buffer_mib for shift in shifted if shift.number in CLIFFS]
    assert cliffs == pytest.approx([1024 * 1.2, 1024 * 0.8])


def test_the_interval_contains_the_jump_at_a_cliff():
    cliff = lambda profile: 21.8 if profile.memory.buffer_mib > 1100 else 17.9  # noqa: E731
    assert uncertain(cliff).bounds[1] == pytest.approx(21.8)


def test_a_session_scales_the_time_and_widens_its_interval():
    def latency(profile: Profile) -> float:
        return 3 * profile.memory.dram_gbps

    cool, slow = uncertain(latency), uncertain(latency, session=Session(2.5, 0.3))
    assert slow.seconds == pytest.approx(2.5 * cool.seconds)
    assert slow.relative == pytest.approx(math.hypot(cool.relative, 0.3))
    assert uncertain(latency, spread=0.4).relative == pytest.approx(math.hypot(cool.relative, 0.4))
    assert dict(slow.largest)["memory.dram_gbps"] == pytest.approx(2.5 * cool.largest[0][1])
