"""The budget, and the costs of mapping as their sources have them."""

import pytest

from llada_jax.swap.address_budget import MIB, Budget, MappingPath, kv_bytes_per_token
from tests.swap.small_graphs import chain
from tests.swap.test_graph import LLADA_8B


def test_keys_and_values_of_llada_8b():
    assert kv_bytes_per_token(LLADA_8B) == MIB // 2
    budget = Budget(kv_bytes_per_token=kv_bytes_per_token(LLADA_8B), tokens=208)
    assert budget.fixed_bytes == 104 * MIB


def test_what_is_fixed_takes_whole_alignments_and_buffers():
    budget = Budget(
        session_bytes=100, max_buffer_bytes=8, alignment=4,
        kv_bytes_per_token=3, tokens=5,
    )  # fmt: skip
    assert budget.fixed_bytes == 16
    assert budget.fixed_buffers == 2


def test_what_a_step_costs_once_is_spread_over_its_transfers():
    path = MappingPath(3, 100, 1e9, "measured", "a test")
    graph = chain([1000, 500], [5, 5], [0, 0])
    planned, priced = path.price(graph), path.price(graph, 4)
    assert planned.transfer_ns([0]) == 1003 and planned.transfer_ns([1]) == 503
    assert sum(priced.transfer_ns([0]) - planned.transfer_ns([0]) for _ in range(4)) == 100


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Budget(session_bytes=0), "session_bytes is 0; allowed: 1 or more"),
        (lambda: Budget(max_buffers=-1), "max_buffers is -1; allowed: 1 or more"),
        (lambda: Budget(tokens=-5), "tokens is -5; allowed: 0 or more"),
        (lambda: Budget(session_bytes=2.5), "session_bytes is 2.5; allowed: 1 or more"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
