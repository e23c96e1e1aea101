"""Addresses: temporaries share them over their lifetimes, weights are packed in order of use."""

from bisect import insort
from collections.abc import Sequence
from typing import NamedTuple

from llada_jax.swap.budget import Budget
from llada_jax.swap.graph import Graph
from llada_jax.swap.plan import Region


class Lifetime(NamedTuple):
    """Something that needs memory from one place in the order to another one, both included."""

    size: int
    first: int
    last: int


def temporaries(graph: Graph, order: Sequence[int], budget: Budget) -> list[Lifetime]:
    """Lifetime of each operator's output: from its run to that of its last reader."""
    place = [0] * len(graph)
    for position, index in enumerate(order):
        place[index] = position
    return [
        Lifetime(
            budget.aligned(operator.temporary_bytes),
            place[index],
            max((place[reader] for reader in graph.readers[index]), default=place[index]),
        )
        for index, operator in enumerate(graph.operators)
    ]


def share(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """An offset for each, and the size of all: no two overlap in memory while both live.

    The largest are placed first, each in the lowest gap that holds it (greedy by size).
    """
    offsets, size = [0] * len(lifetimes), 0
    placed: list[tuple[int, int]] = []  # offset and index, by offset
    for index in sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].size, i)):
        mine, at = lifetimes[index], 0
        if not mine.size:
            continue
        for offset, other in placed:
            lives = lifetimes[other]
            if lives.first > mine.last or lives.last < mine.first:
                continue
            if at + mine.size <= offset:
                break
            at = max(at, offset + lives.size)
        offsets[index] = at
        insort(placed, (at, index))
        size = max(size, at + mine.size)
    return offsets, size


class Packer:
    """Fills buffers one after the other: neighbours in order of use share a mapping."""

    def __init__(self, room: int, max_buffers: int, max_buffer_bytes: int):
        self._room, self._max_buffers, self._max_bytes = room, max_buffers, max_buffer_bytes
        self.sizes: list[int] = []
        """Bytes of each buffer."""

    def add(self, size: int) -> bool:
        """Take one more tensor; False, and nothing changes, where bytes or mappings do not do."""
        if not size:
            return True
        if sum(self.sizes) + size > self._room or size > self._max_bytes:
            return False
        if self.sizes and self.sizes[-1] + size <= self._max_bytes:
            self.sizes[-1] += size
            return True
        if len(self.sizes) == self._max_buffers:
            return False
        self.sizes.append(size)
        return True


def regions(start: int, sizes: Sequence[int]) -> list[Region]:
    """Regions one after the other."""
    out = []
    for size in sizes:
        out.append(Region(start, size))
        start += size
    return out
