"""From decisions to addresses: the address space of a plan.

It starts with keys and values, then come the temporaries, the buffers of the weights, the slots.
Temporaries share addresses over their lifetimes, weights are packed in order of use.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from llada_jax.swap.address_budget import Budget, PlanError
from llada_jax.swap.address_plan import Plan, Region, Transfer
from llada_jax.swap.graph import Graph


class Room(NamedTuple):
    """What is left for weights once keys, values and temporaries have their place."""

    fixed: Region
    arena: Region
    temporaries: tuple[Region, ...]
    start: int
    """Address of the first byte for weights."""
    size: int
    buffers: int
    """Mappings that are left."""


@lru_cache(maxsize=8)
def room_for_weights(graph: Graph, budget: Budget, order: tuple[int, ...] | range) -> Room:
    """Returns what is left for weights when operators run in this order.

    Raises PlanError where no weights fit, or not those of the largest operator.
    """
    offsets, arena_bytes = share(temporaries(graph, order, budget))
    fixed = Region(0, budget.fixed_bytes)
    arena = Region(fixed.end, arena_bytes)
    room = Room(
        fixed,
        arena,
        tuple(
            Region(arena.start + offset, operator.temporary_bytes)
            for offset, operator in zip(offsets, graph.operators, strict=True)
        ),
        arena.end,
        (budget.session_bytes - arena.end) // budget.alignment * budget.alignment,
        budget.max_buffers - budget.fixed_buffers - bool(arena_bytes),
    )
    if arena_bytes > budget.max_buffer_bytes:
        raise PlanError(
            f"temporaries take {arena_bytes:,} bytes; allowed in a buffer: "
            f"{budget.max_buffer_bytes:,}"
        )
    if room.size < 0 or room.buffers < 0:
        used = budget.max_buffers - room.buffers
        raise PlanError(
            f"keys, values and temporaries take {arena.end:,} bytes in {used} buffers; allowed: "
            f"{budget.session_bytes:,} in {budget.max_buffers}"
        )
    largest = max(graph.operators, key=lambda operator: operator.weight_bytes)
    limit = min(room.size, budget.max_buffer_bytes if room.buffers > 0 else 0)
    if budget.aligned(largest.weight_bytes) > limit:
        raise PlanError(
            f"operator {largest.name!r} needs {largest.weight_bytes:,} bytes at once; the budget "
            f"leaves {max(0, limit):,} (of {budget.session_bytes:,}, keys and values take "
            f"{fixed.size:,} and temporaries {arena_bytes:,})"
        )
    return room


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


def in_slots(
    graph: Graph,
    budget: Budget,
    order: Sequence[int],
    groups: Sequence[Sequence[int]],
    n_slots: int,
) -> Plan | None:
    """Returns a plan in which groups of operators take turns in the slots, and all others stay.

    Groups are in order of use. Where there are no more of them than slots, each would stay in its
    slot from step to step: then all are residents. It is None where it does not fit.
    """
    if len(groups) <= n_slots:
        groups, n_slots = [], 0
    room = room_for_weights(graph, budget, tuple(order))
    sizes = budget.sizes(graph)
    slot_bytes = max((sum(sizes[i] for i in group) for group in groups), default=0)
    if slot_bytes > budget.max_buffer_bytes or room.buffers < n_slots:
        return None
    staged = {i for group in groups for i in group}
    residents = [i for i in order if i not in staged and sizes[i]]
    left = room.size - n_slots * slot_bytes
    packer = Packer(left, room.buffers - n_slots, budget.max_buffer_bytes)
    address = {}
    for i in residents:
        offset = packer.add(sizes[i])
        if offset is None:
            return None
        address[i] = room.start + offset
    slots = regions(room.start + packer.used, [slot_bytes] * n_slots)
    for rank, group in enumerate(groups):
        starts = accumulate((sizes[i] for i in group), initial=slots[rank % n_slots].start)
        address |= dict(zip(group, starts, strict=False))
    transfers = [Transfer(tuple(group), rank % n_slots) for rank, group in enumerate(groups)]
    return assemble(graph, room, order, transfers, address, packer.sizes, slots)


def assemble(
    graph: Graph,
    room: Room,
    order: Sequence[int],
    transfers: Sequence[Transfer],
    address: Mapping[int, int],
    buffers: Sequence[int],
    slots: Sequence[Region],
) -> Plan:
    """Returns the plan of all these; operators without an address have no weights."""
    return Plan(
        order=tuple(order),
        transfers=tuple(transfers),
        weights=tuple(
            Region(address.get(i, room.start), operator.weight_bytes)
            for i, operator in enumerate(graph.operators)
        ),
        temporaries=room.temporaries,
        buffers=tuple(regions(room.start, buffers)),
        slots=tuple(slots),
        fixed=room.fixed,
        arena=room.arena,
    )


def regions(start: int, sizes: Sequence[int]) -> list[Region]:
    """Returns regions of these sizes, one after the other."""
    starts = accumulate(sizes, initial=start)
    return [Region(at, size) for at, size in zip(starts, sizes, strict=False)]
