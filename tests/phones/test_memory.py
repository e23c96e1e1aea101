"""Buffers, footprints and row limits of the address space, and transfers by the simple rule."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.model.architecture import architecture
from llada_jax.phones.memory import (
    buffers_mib,
    footprint,
    max_rows,
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


def test_llada_8b_has_three_full_buffers_and_a_smaller_one():
    assert weights_mib(LLADA, head=False) == 32 * 117
    assert buffers_mib(32 * 117, 1024) == [1024, 1024, 1024, 672]


@given(SIZES, st.floats(0, 5000))
def test_resident_buffers_are_the_best_subset_within_the_budget(sizes, budget):
    resident = resident_mib(sizes, budget)
    assert resident <= budget and resident <= sum(sizes)
    assert resident_mib(sizes, budget + 64) >= resident
    greedy = 0.0
    for size in sorted(sizes, reverse=True):
        greedy += size if greedy + size <= budget else 0
    assert resident >= greedy


@pytest.mark.parametrize("runtime", ["remap", "paging", "swap", "delayed", "wide"])
def test_max_rows_fit_and_one_more_does_not(runtime):
    memory = replace(PHONE.memory, address_space_mib=5000)
    rows = max_rows(System(runtime=runtime), LLADA, memory, canvas=512)
    for more, fits in ((0, True), (1, False)):
        assert (
            footprint(System(runtime=runtime), LLADA, memory, canvas=512, rows=rows + more).fits
            == fits
        )


def test_resident_weights_and_cache_leave_fewer_rows():
    free = max_rows(System(runtime="swap"), LLADA, PHONE.memory, canvas=256)
    resident = max_rows(System(runtime="swap"), LLADA, PHONE.memory, canvas=256, resident=3072)
    assert (
        free
        > resident
        > max_rows(System(runtime="swap"), LLADA, PHONE.memory, canvas=512, resident=3072)
    )
    with pytest.raises(ValueError, match=r"runtime is 'remap': one row needs .* MiB; allowed: a r"):
        max_rows(System(runtime="remap"), LLADA, PHONE.memory, canvas=4096)


def test_runtime_none_must_fit_into_the_cap_of_a_session():
    needed = footprint(System(runtime="none"), LLADA, PHONE.memory, canvas=128, rows=64).total
    for cap, fits in ((needed - 1, False), (needed + 1, True)):
        memory = replace(PHONE.memory, mapping_cap_mib=cap)
        capped = footprint(System(runtime="none"), LLADA, memory, canvas=128, rows=64)
        assert (capped.limit, capped.fits) == (cap, fits)


def test_64_bit_mappings_fit_any_canvas():
    assert footprint(System(runtime="wide"), LLADA, PHONE.memory, canvas=10**6, rows=512).fits


@given(st.integers(1, 4096), st.integers(1, 512))
def test_swap_needs_the_least_memory_and_longer_canvases_more(canvas, rows):
    def total(runtime, canvas=canvas):
        return footprint(
            System(runtime=runtime), LLADA, PHONE.memory, canvas=canvas, rows=rows
        ).total

    assert total("swap") <= total("remap") == total("none")
    assert total("swap") <= total("paging")
    assert total("swap", canvas + 1) > total("swap")


def test_the_reason_of_a_footprint_has_its_sizes():
    small = replace(PHONE.memory, address_space_mib=100)
    needed = footprint(System(runtime="remap"), LLADA, small, canvas=128, rows=32)
    assert not needed.fits
    assert needed.reason.startswith("3,8") and "3,744 weights" in needed.reason
    assert needed.reason.endswith("in 100 MiB")


def test_activations_of_layers_are_shared_or_separate():
    one_layer = sum(8 * [LLADA.width], 3 * LLADA.ffn_width)
    assert temporaries_mib(LLADA, 64, shared=True) == 64 * one_layer * 2 / MIB
    assert temporaries_mib(LLADA, 64, shared=False) == 32 * 64 * one_layer * 2 / MIB


def rule(runtime, **settings):
    canvas = settings.pop("canvas", 0)
    return transfers_by_rule(System(runtime=runtime, **settings), LLADA, PHONE, canvas)


def copied_mib(**settings):
    return sum(transfer.copied_bytes for transfer in rule("swap", **settings).transfers) / MIB


@pytest.mark.parametrize(("budget", "copied"), [(3072, 672), (2816, 1024), (2048, 1696), (0, 3744)])
def test_a_step_copies_the_weights_that_are_not_resident(budget, copied):
    assert copied_mib(resident_mib=budget) == copied
    transfers = rule("swap", resident_mib=budget)
    seconds = copied * MIB / PHONE.mapping.copy_gbps / 1e9 + PHONE.mapping.copy_ms / 1e3
    assert transfers.seconds == pytest.approx(seconds)
    assert transfers.resident_mib == 3744 - copied


def test_a_copy_waits_for_its_slot_and_feeds_its_layer():
    transfers = rule("swap").transfers
    assert [transfer.feeds for transfer in transfers] == list(range(32))
    assert [transfer.after for transfer in transfers] == [None, None, *range(30)]


def test_keys_and_values_leave_less_room_for_resident_weights():
    assert copied_mib(canvas=0) == copied_mib(canvas=256) == 672  # the budget is the limit
    assert copied_mib(canvas=2048) == 3744 - 2048  # 1,024 MiB of keys and values: one buffer less
    assert copied_mib(canvas=4096) == 3744 - 1024


def test_remap_maps_every_buffer_and_delayed_mapping_is_cheap():
    remap, delayed = rule("remap"), rule("delayed")
    assert len(remap.transfers) == 4
    assert remap.seconds == pytest.approx(4 * PHONE.mapping.event_ms / 1e3)
    assert 0 < delayed.seconds < remap.seconds / 100
    assert {transfer.copied_bytes for transfer in (*remap.transfers, *delayed.transfers)} == {0}


@pytest.mark.parametrize("runtime", ["none", "remap", "paging", "swap", "delayed", "wide"])
def test_a_model_that_fits_is_never_staged(runtime):
    assert transfers_by_rule(System(runtime=runtime), SHAPE, PHONE).transfers == ()


def test_64_bit_mappings_need_no_transfers():
    assert rule("wide").transfers == ()


def test_runtime_none_is_refused_if_a_session_cannot_map_everything():
    with pytest.raises(ValueError, match=r"runtime is 'none'.* 3,\d+ MiB to map .* in 3,200 MiB"):
        rule("none")
    roomy = PHONE.with_values({"memory.mapping_cap_mib": 3900, "memory.address_space_mib": 3900})
    assert not transfers_by_rule(System(runtime="none"), LLADA, roomy, canvas=128).transfers
