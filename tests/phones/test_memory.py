"""Buffers, what stays resident, what fits, and what a step stages by rule."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.model.architecture import architecture
from llada_jax.phones.memory import (
    buffers_mib,
    footprint,
    most_rows,
    resident_mib,
    temporaries_mib,
    transfers_by_rule,
    weights_mib,
)
from llada_jax.phones.system import System
from llada_jax.swap.address_space import MIB
from tests.phones.small import PHONE, SHAPE

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


def rule(runtime, **settings):
    canvas = settings.pop("canvas", 0)
    return transfers_by_rule(System(runtime=runtime, **settings), LLADA, PHONE, canvas)


def copied_mib(**settings):
    return sum(each.copied_bytes for each in rule("swap", **settings).transfers) / MIB


@pytest.mark.parametrize(("budget", "moved"), [(3072, 672), (2816, 1024), (2048, 1696), (0, 3744)])
def test_a_step_copies_what_is_not_resident(budget, moved):
    assert copied_mib(resident_mib=budget) == moved
    found = rule("swap", resident_mib=budget)
    seconds = moved * MIB / PHONE.mapping.copy_gbps / 1e9 + PHONE.mapping.copy_ms / 1e3
    assert found.seconds == pytest.approx(seconds)
    assert sum(each.seconds for each in found.transfers) == pytest.approx(seconds)
    assert found.resident_mib == 3744 - moved


def test_a_copy_waits_for_its_slot_and_feeds_its_layer():
    transfers = rule("swap").transfers
    assert [each.feeds for each in transfers] == list(range(32))
    assert [each.after for each in transfers] == [None, None, *range(30)]


def test_keys_and_values_take_room_from_what_stays():
    assert copied_mib(canvas=0) == copied_mib(canvas=256) == 672  # the budget is what binds
    assert copied_mib(canvas=2048) == 3744 - 2048  # 1,024 MiB of keys and values: a buffer less
    assert copied_mib(canvas=4096) == 3744 - 1024


def test_remapping_touches_every_buffer_and_the_delayed_path_costs_little():
    remap, delayed = rule("remap"), rule("delayed")
    assert len(remap.transfers) == 4
    assert remap.seconds == pytest.approx(4 * PHONE.mapping.event_ms / 1e3)
    assert 0 < delayed.seconds < remap.seconds / 100
    assert {each.copied_bytes for each in (*remap.transfers, *delayed.transfers)} == {0}


@pytest.mark.parametrize("runtime", ["none", "remap", "paging", "swap", "delayed", "wide"])
def test_what_fits_is_never_staged(runtime):
    found = transfers_by_rule(System(runtime=runtime), SHAPE, PHONE)
    assert found.seconds == 0 and found.transfers == ()


def test_64_bit_mappings_need_no_transfers():
    assert rule("wide").transfers == ()


def test_all_mapped_once_is_refused_where_a_session_does_not_keep_it_mapped():
    with pytest.raises(ValueError, match=r"runtime is 'none'.* 3,\d+ MiB to map .* in 3,200 MiB"):
        rule("none")
    roomy = PHONE.with_values({"memory.mapping_cap_mib": 3900, "memory.address_space_mib": 3900})
    found = transfers_by_rule(System(runtime="none"), LLADA, roomy, canvas=128)
    assert found.seconds == 0
