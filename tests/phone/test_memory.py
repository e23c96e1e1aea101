"""Buffers, what stays resident, and what fits."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.model.architecture import architecture
from llada_jax.phone.memory import (
    buffers_mib,
    footprint,
    most_rows,
    resident_mib,
    temporaries_mib,
    weights_mib,
)
from llada_jax.phone.system import System
from llada_jax.swap.address_budget import MIB
from tests.phone.small import PHONE

LLADA = architecture("llada_8b")
SIZES = st.lists(st.sampled_from([64.0, 256.0, 672.0, 1024.0]), max_size=6)


def test_llada_8b_is_three_full_buffers_and_a_smaller_one():
    assert weights_mib(LLADA, head=False) == 32 * 117
    assert buffers_mib(32 * 117, 1024) == [1024, 1024, 1024, 672]


@given(SIZES, st.floats(0, 5000))
def test_what_is_resident_is_the_best_whole_set_under_the_budget(sizes, budget):
    found = resident_mib(sizes, budget)
    assert found <= budget and found <= sum(sizes)
    assert resident_mib(sizes, budget + 64) >= found
    greedy = 0.0
    for size in sorted(sizes, reverse=True):
        greedy += size if greedy + size <= budget else 0
    assert found >= greedy


@pytest.mark.parametrize("runtime", ["remap", "paging", "swap", "delayed", "wide"])
def test_the_most_rows_fit_and_one_more_does_not(runtime):
    memory = replace(PHONE.memory, address_space_mib=5000)
    rows = most_rows(System(runtime=runtime), LLADA, memory, canvas=512)
    for more, fits in ((0, True), (1, False)):
        assert (
            footprint(System(runtime=runtime), LLADA, memory, canvas=512, rows=rows + more).fits
            == fits
        )


def test_what_stays_resident_and_the_cache_take_room_from_rows():
    free = most_rows(System(runtime="swap"), LLADA, PHONE.memory, canvas=256)
    resident = most_rows(System(runtime="swap"), LLADA, PHONE.memory, canvas=256, resident=3072)
    assert (
        free
        > resident
        > most_rows(System(runtime="swap"), LLADA, PHONE.memory, canvas=512, resident=3072)
    )
    with pytest.raises(ValueError, match=r"runtime is 'remap': one row needs .* MiB; allowed: a r"):
        most_rows(System(runtime="remap"), LLADA, PHONE.memory, canvas=4096)


def test_all_mapped_once_must_fit_into_what_a_session_keeps_mapped():
    needed = footprint(System(runtime="none"), LLADA, PHONE.memory, canvas=128, rows=64).total
    for cap, fits in ((needed - 1, False), (needed + 1, True)):
        memory = replace(PHONE.memory, mapping_cap_mib=cap)
        found = footprint(System(runtime="none"), LLADA, memory, canvas=128, rows=64)
        assert (found.limit, found.fits) == (cap, fits)


def test_64_bit_mappings_never_stage():
    assert footprint(System(runtime="wide"), LLADA, PHONE.memory, canvas=10**6, rows=512).fits


@given(st.integers(1, 4096), st.integers(1, 512))
def test_staging_needs_least_and_longer_canvases_need_more(canvas, rows):
    def total(runtime, canvas=canvas):
        return footprint(
            System(runtime=runtime), LLADA, PHONE.memory, canvas=canvas, rows=rows
        ).total

    assert total("swap") <= total("remap") == total("none")
    assert total("swap") <= total("paging")
    assert total("swap", canvas + 1) > total("swap")


def test_a_footprint_says_why_it_does_not_fit():
    small = replace(PHONE.memory, address_space_mib=100)
    found = footprint(System(runtime="remap"), LLADA, small, canvas=128, rows=32)
    assert not found.fits
    assert found.reason.startswith("3,8") and "3,744 weights" in found.reason
    assert found.reason.endswith("in 100 MiB")


def test_layers_share_the_place_of_activations_or_have_one_each():
    one_layer = sum(8 * [LLADA.width], 3 * LLADA.ffn_width)
    assert temporaries_mib(LLADA, 64, shared=True) == 64 * one_layer * 2 / MIB
    assert temporaries_mib(LLADA, 64, shared=False) == 32 * 64 * one_layer * 2 / MIB
