"""Shared offsets and packed buffers: no overlap, and no more room than needed."""

from itertools import accumulate, combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from llada_jax.swap.address_layout import Lifetime, Packer, share, temporaries
from llada_jax.swap.graph import Graph, Operator
from tests.swap.small_graphs import one_buffer

LIFETIMES = st.lists(
    st.builds(
        lambda size, first, length: Lifetime(size, first, first + length),
        st.integers(0, 9), st.integers(0, 9), st.integers(0, 4),
    ),
    max_size=10,
)  # fmt: skip


@given(LIFETIMES)
def test_what_lives_together_lies_apart(lifetimes):
    offsets, size = share(lifetimes)
    placed = list(zip(lifetimes, offsets, strict=True))
    for (one, at), (other, beside) in combinations(placed, 2):
        together = one.first <= other.last and other.first <= one.last
        apart = at + one.size <= beside or beside + other.size <= at
        assert not together or apart or not (one.size and other.size)
    peak = max(
        (sum(each.size for each in lifetimes if each.first <= t <= each.last) for t in range(15)),
        default=0,
    )
    assert peak <= size == max((at + one.size for one, at in placed if one.size), default=0)


def test_those_that_never_meet_share():
    assert share([Lifetime(5, 0, 1), Lifetime(3, 2, 3), Lifetime(5, 2, 2)])[1] == 8
    assert share([Lifetime(5, 0, 1), Lifetime(5, 2, 3)]) == ([0, 0], 5)


def test_an_output_lives_until_its_last_reader():
    graph = Graph(
        (
            Operator("a", 1, 1, 1, 5),
            Operator("b", 1, 1, 1, 7, (0,)),
            Operator("c", 1, 1, 1, 2),
            Operator("d", 1, 1, 1, 0, (0, 2)),
        )
    )
    budget = one_buffer(100)
    assert temporaries(graph, [0, 1, 2, 3], budget)[0] == Lifetime(5, 0, 3)
    assert temporaries(graph, [2, 0, 3, 1], budget) == [
        Lifetime(5, 1, 3), Lifetime(7, 3, 3), Lifetime(2, 0, 2), Lifetime(0, 2, 2)
    ]  # fmt: skip


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
