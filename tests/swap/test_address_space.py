"""Budgets, costs of mapping, and packing of buffers."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.swap.address_space import MIB, Budget, MappingPath, Packer
from llada_jax.swap.graph import kv_bytes_per_token
from tests.swap.small_graphs import chain
from tests.swap.test_graph import LLADA_8B


def test_keys_and_values_of_llada_8b():
    assert kv_bytes_per_token(LLADA_8B) == MIB // 2
    budget = Budget(kv_bytes_per_token=kv_bytes_per_token(LLADA_8B), tokens=208)
    assert budget.fixed_bytes == 104 * MIB


def test_fixed_parts_are_aligned_and_split_into_buffers():
    budget = Budget(
        session_bytes=100, max_buffer_bytes=8, alignment=4,
        kv_bytes_per_token=3, tokens=5,
    )  # fmt: skip
    assert budget.fixed_bytes == 16
    assert budget.fixed_buffers == 2


def test_the_fixed_time_of_a_step_is_spread_over_its_transfers():
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
def test_invalid_input_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@given(
    st.lists(st.integers(1, 9), max_size=8),
    st.integers(0, 50),
    st.integers(0, 5),
    st.integers(1, 20),
)
def test_packed_tensors_do_not_overlap_or_cross_buffers(sizes, room, max_buffers, max_buffer_bytes):
    packer = Packer(room, max_buffers, max_buffer_bytes)
    spans = [(at, at + size) for size in sizes if (at := packer.add(size)) is not None]
    assert sum(packer.sizes) == packer.used == sum(end - at for at, end in spans) <= room
    assert len(packer.sizes) <= max_buffers
    assert max(packer.sizes, default=0) <= max_buffer_bytes
    ends = [0, *accumulate(packer.sizes)]
    for at, end in spans:
        assert any(low <= at and end <= high for low, high in pairwise(ends))
    assert all(end <= after for (_, end), (after, _) in pairwise(spans))


def test_neighbours_in_order_of_use_share_a_buffer():
    packer = Packer(12, 2, 6)
    assert [packer.add(3) for _ in range(5)] == [0, 3, 6, 9, None]
    assert packer.sizes == [6, 6]
