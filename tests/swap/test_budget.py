"""The budget, and the costs of mapping as their sources have them."""

import pytest

from llada_jax.swap.budget import MIB, PATHS, Budget, kv_bytes_per_token, mapping_path
from tests.swap.test_graph import LLADA_8B


def test_keys_and_values_of_llada_8b():
    assert kv_bytes_per_token(LLADA_8B) == MIB // 2
    budget = Budget(kv_bytes_per_token=kv_bytes_per_token(LLADA_8B), tokens=208)
    assert budget.fixed_bytes == 104 * MIB


def test_what_is_fixed_takes_whole_alignments_and_buffers():
    budget = Budget(
        session_bytes=100, max_buffer_bytes=8, alignment=4,
        kv_bytes_per_token=3, tokens=5, reserved_bytes=1,
    )  # fmt: skip
    assert budget.fixed_bytes == 16 + 4
    assert budget.fixed_buffers == 2 + 1


def test_paths_cost_what_their_sources_say():
    assert PATHS["immediate"].map_ns == pytest.approx(((29.2 + 24.4) / 2 - 1.6) * 1e6)
    ends = [672 * MIB / 0.335, 3744 * MIB / 1.830]
    assert PATHS["copy"].bytes_per_second == pytest.approx(sum(ends) / 2, rel=0.01)
    maps, unmaps = (34.7, 29.8, 30.1), (65.3, 56.1, 57.0)
    assert PATHS["delayed"].map_ns == pytest.approx((sum(maps) + sum(unmaps)) / 3 * 1e3, rel=0.01)
    assert all(path.source and path.tag for path in PATHS.values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Budget(session_bytes=0), "session_bytes is 0; allowed: above 0"),
        (lambda: Budget(max_buffers=-1), "max_buffers is -1; allowed: above 0"),
        (lambda: Budget(tokens=-5), "tokens is -5; allowed: 0 or more"),
        (lambda: Budget(session_bytes=2.5), "session_bytes is 2.5; allowed: above 0"),
        (lambda: mapping_path("fast"), "path is 'fast'; allowed: 'immediate', 'copy', 'delayed'"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
