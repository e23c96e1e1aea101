"""From decisions to addresses: the address space of a plan.

It starts with keys, values and temporaries, then come the buffers of the weights, which are packed
in order of use, and the slots.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from llada_jax.swap.address_budget import Budget, PlanError
from llada_jax.swap.address_plan import Plan, Region, Transfer
from llada_jax.swap.graph import Graph


class Room(NamedTuple):
    """What is left for weights once keys, values and temporaries have their place."""

    fixed: Region
    size: int
    buffers: int
    """Mappings that are left."""

    @property
    def start(self) -> int:
        """Address of the first byte for weights."""
        return self.fixed.end


def room_for_weights(graph: Graph, budget: Budget) -> Room:
    """Returns what is left for weights.

    Raises PlanError where no weights fit, or not those of the largest operator.
    """
    fixed = Region(0, budget.fixed_bytes)
    size = (budget.session_bytes - fixed.end) // budget.alignment * budget.alignment
    room = Room(fixed, size, budget.max_buffers - budget.fixed_buffers)
    if room.size < 0 or room.buffers < 0:
        raise PlanError(
            f"keys, values and temporaries take {fixed.end:,} bytes in {budget.fixed_buffers} "
            f"buffers; allowed: {budget.session_bytes:,} in {budget.max_buffers}"
        )
    largest = max(graph.operators, key=lambda operator: operator.weight_bytes)
    limit = min(room.size, budget.max_buffer_bytes if room.buffers > 0 else 0)
    if budget.aligned(largest.weight_bytes) > limit:
        raise PlanError(
            f"operator {largest.name!r} needs {largest.weight_bytes:,} bytes at once; the budget "
            f"leaves {max(0, limit):,} (of {budget.session_bytes:,}, keys, values and temporaries "
            f"take {fixed.size:,})"
        )
    return room


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
    room = room_for_weights(graph, budget)
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
        buffers=tuple(regions(room.start, buffers)),
        slots=tuple(slots),
        fixed=room.fixed,
    )


def regions(start: int, sizes: Sequence[int]) -> list[Region]:
    """Returns regions of these sizes, one after the other."""
    starts = accumulate(sizes, initial=start)
    return [Region(at, size) for at, size in zip(starts, sizes, strict=False)]
