"""Packed buffers: no overlap, and no more room than needed."""

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from llada_jax.swap.address_plan import Packer


@given(
    st.lists(st.integers(1, 9), max_size=8),
    st.integers(0, 50),
    st.integers(0, 5),
    st.integers(1, 20),
)
def test_tensors_lie_apart_in_whole_buffers(sizes, room, max_buffers, max_buffer_bytes):
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
