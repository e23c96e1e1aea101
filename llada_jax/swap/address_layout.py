"""From decisions to addresses: the address space of a plan.

It starts with keys and values, then come the temporaries, the buffers of the weights, the slots.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from llada_jax.swap.address_budget import Budget, PlanError
from llada_jax.swap.address_plan import Plan, Region, Transfer
from llada_jax.swap.graph import Graph
from llada_jax.swap.offsets import pack, share, temporaries


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
    lifetimes = temporaries(graph, order, budget)
    offsets, arena_bytes = share(lifetimes)
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
    sizes = [budget.aligned(operator.weight_bytes) for operator in graph.operators]
    slot_bytes = max((sum(sizes[i] for i in group) for group in groups), default=0)
    if slot_bytes > budget.max_buffer_bytes or room.buffers < n_slots:
        return None
    staged = {i for group in groups for i in group}
    residents = [i for i in order if i not in staged and sizes[i]]
    packed = pack(
        [sizes[i] for i in residents],
        room.size - n_slots * slot_bytes,
        room.buffers - n_slots,
        budget.max_buffer_bytes,
    )
    if packed is None:
        return None
    slots = regions(room.start + sum(packed.buffers), [slot_bytes] * n_slots)
    address = {i: room.start + at for i, at in zip(residents, packed.offsets, strict=True)}
    for rank, group in enumerate(groups):
        starts = accumulate((sizes[i] for i in group), initial=slots[rank % n_slots].start)
        address |= dict(zip(group, starts, strict=False))
    transfers = [Transfer(tuple(group), rank % n_slots) for rank, group in enumerate(groups)]
    return assemble(graph, room, order, transfers, address, packed.buffers, slots)


def assemble(
    graph: Graph,
    room: Room,
    order: Sequence[int],
    transfers: Sequence[Transfer],
    address: Mapping[int, int],
    buffers: Sequence[int],
    slots: Sequence[Region],
    *,
    prefetch: bool = True,
) -> Plan:
    """Returns the plan of all these; operators without an address have no weights."""
    return Plan(
        order=tuple(order),
        transfers=tuple(transfers),
        prefetch=prefetch,
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
