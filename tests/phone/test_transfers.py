"""What a step stages by rule: copies, mappings, or nothing."""

import pytest

from llada_jax.model.architecture import architecture
from llada_jax.phone.system import System
from llada_jax.phone.transfers import transfers_by_rule
from llada_jax.swap.address_budget import MIB
from tests.phone.small import PHONE, SHAPE

LLADA = architecture("llada_8b")


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


def test_64_bit_mappings_never_stage():
    assert rule("wide").transfers == ()


def test_all_mapped_once_must_fit_into_what_a_session_keeps_mapped():
    with pytest.raises(ValueError, match=r"runtime is 'none'.* 3,\d+ MiB to map .* in 3,200 MiB"):
        rule("none")
    roomy = PHONE.with_values({"memory.mapping_cap_mib": 3900, "memory.address_space_mib": 3900})
    found = transfers_by_rule(System(runtime="none"), LLADA, roomy, canvas=128)
    assert found.seconds == 0
