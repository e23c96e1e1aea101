"""Addresses: temporaries share them over their lifetimes, weights are packed in order of use."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from llada_jax.swap.address_budget import Budget
from llada_jax.swap.graph import Graph


class Lifetime(NamedTuple):
    """Something that needs memory from one place in the order to another one, both included."""

    size: int
    first: int
    last: int


def temporaries(graph: Graph, order: Sequence[int], budget: Budget) -> list[Lifetime]:
    """Returns each operator's output's lifetime: from its run to that of its last reader."""
    place = {index: position for position, index in enumerate(order)}
    return [
        Lifetime(
            budget.aligned(operator.temporary_bytes),
            place[index],
            max((place[reader] for reader in graph.readers[index]), default=place[index]),
        )
        for index, operator in enumerate(graph.operators)
    ]


def share(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Returns an offset for each, and the size of all; no two overlap while both live.

    The largest are placed first, each in the lowest gap that holds it (greedy by size).
    """
    first = np.array([lifetime.first for lifetime in lifetimes])
    last = np.array([lifetime.last for lifetime in lifetimes])
    offsets = np.zeros(len(lifetimes), np.int64)
    is_placed = np.zeros(len(lifetimes), bool)
    size = 0
    for index in sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].size, i)):
        mine = lifetimes[index]
        if not mine.size:
            break
        beside = np.flatnonzero(is_placed & (first <= mine.last) & (last >= mine.first)).tolist()
        taken = sorted((int(offsets[other]), lifetimes[other].size) for other in beside)
        offsets[index] = _lowest_gap(taken, mine.size)
        is_placed[index] = True
        size = max(size, int(offsets[index]) + mine.size)
    return offsets.tolist(), size


def _lowest_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """Returns the lowest offset with `size` bytes free; the others are (offset, size) in order."""
    at = 0
    for offset, length in taken:
        if at + size <= offset:
            break
        at = max(at, offset + length)
    return at


class Packer:
    """Fills buffers one after the other: neighbours in order of use share a mapping."""

    def __init__(self, room: int, max_buffers: int, max_buffer_bytes: int):
        self._room, self._max_buffers, self._max_bytes = room, max_buffers, max_buffer_bytes
        self.sizes: list[int] = []
        """Bytes of each buffer."""
        self.used = 0
        """Bytes of all buffers."""

    def add(self, size: int) -> int | None:
        """Returns the offset of one more tensor; None, and nothing changes, if it does not fit."""
        if self.used + size > self._room or size > self._max_bytes:
            return None
        if not self.sizes or self.sizes[-1] + size > self._max_bytes:
            if len(self.sizes) == self._max_buffers:
                return None
            self.sizes.append(0)
        self.sizes[-1] += size
        self.used += size
        return self.used - size


class Packed(NamedTuple):
    """Tensors in buffers that lie one after the other."""

    offsets: list[int]
    buffers: list[int]
    """Bytes of each buffer."""


def pack(sizes: Sequence[int], room: int, max_buffers: int, max_buffer_bytes: int) -> Packed | None:
    """Packs tensors in order of use, or by size where the order needs too many mappings.

    Returns None where neither way finds room.
    """
    packer = Packer(room, max_buffers, max_buffer_bytes)
    offsets = [packer.add(size) for size in sizes]
    if None not in offsets:
        return Packed([offset for offset in offsets if offset is not None], packer.sizes)
    if sum(sizes) > room:
        return None
    return _first_fit_decreasing(sizes, max_buffers, max_buffer_bytes)


def _first_fit_decreasing(
    sizes: Sequence[int], max_buffers: int, max_buffer_bytes: int
) -> Packed | None:
    buffers: list[int] = []
    home: list[tuple[int, int]] = [(0, 0)] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        fits = (b for b, used in enumerate(buffers) if used + sizes[index] <= max_buffer_bytes)
        buffer = next(fits, len(buffers))
        if buffer == len(buffers):
            if buffer == max_buffers or sizes[index] > max_buffer_bytes:
                return None
            buffers.append(0)
        home[index] = buffer, buffers[buffer]
        buffers[buffer] += sizes[index]
    starts = [sum(buffers[:buffer]) for buffer in range(len(buffers))]
    return Packed([starts[buffer] + within for buffer, within in home], buffers)
