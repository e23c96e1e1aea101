"""Doubts add up in the logarithm; cliffs and counted numbers are treated as what they are."""

import math

import pytest

from llada_jax.phones.uncertainty import CLIFFS, DOUBT, moved_profiles, with_uncertainty
from tests.phones.small import PHONE


def test_doubts_add_in_quadrature_golden():
    sure = with_uncertainty(PHONE, lambda moved: moved.memory.dram_gbps * moved.power.idle_w**2)
    tags = [PHONE.numbers[path].tag for path in ("memory.dram_gbps", "power.idle_w")]
    parts = [math.log(1 + DOUBT[tag]) for tag in tags]
    assert sure.relative == pytest.approx(math.hypot(parts[0], 2 * parts[1]))
    assert [name for name, _ in sure.largest] == ["power.idle_w", "memory.dram_gbps"]
    low, high = sure.bounds
    assert low * high == pytest.approx(sure.seconds**2) and 0 < low < sure.seconds


def test_counted_numbers_stay_and_cliffs_are_tried_on_both_sides():
    moved = moved_profiles(PHONE)
    numbers = [each.number for each in moved]
    assert "npu.llada_cpp.tile_rows" not in numbers and "session.npu_slowdown" not in numbers
    cliffs = [each.profile.memory.buffer_mib for each in moved if each.number in CLIFFS]
    assert cliffs == pytest.approx([1024 * 1.2, 1024 * 0.8])


def test_a_cliff_lies_within_the_band():
    """What costs a fifth more where buffers are a fifth larger is inside of 95 %."""
    cliff = lambda moved: 21.8 if moved.memory.buffer_mib > 1100 else 17.9  # noqa: E731
    assert with_uncertainty(PHONE, cliff).bounds[1] == pytest.approx(21.8)
