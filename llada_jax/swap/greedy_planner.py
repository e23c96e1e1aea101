"""The paper's planner: alternating groups of residents and of temporaries (llada.cpp, section 3.4).

A group of residents fills the resident region; then come operators whose transfers together take
less than the group's compute time, so that they hide behind it; then the next residents, and so on.
Operators that depend on nothing skipped may be taken before their turn. Where there are several
groups of residents, they share the region: each is mapped when the one before it has run.

The paper leaves open what a step leaves to the next one. Here weights that nothing displaces stay:
residents that no other group overlaps, and temporaries if the two slots hold all of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llada_jax.config import require
from llada_jax.swap.address_space import (
    MIB,
    Budget,
    Packer,
    Plan,
    PlanError,
    Region,
    Transfer,
    assemble,
    in_slots,
    regions,
    room_for_weights,
)
from llada_jax.swap.graph import Graph

SLOTS = 2
PUBLISHED_SLOT_BYTES = 128 * MIB
"""Size of one of the two slots through which Figure 13c stages 256 MB."""


Round = tuple[dict[int, int], list[int]]
"""Residents with the offsets of their weights in the region, then temporaries, in order of use."""


@dataclass(frozen=True)
class Greedy:
    """The planner. `slot_bytes` is the size of each slot; default: the largest operator's."""

    slot_bytes: int | None = None

    def __post_init__(self) -> None:
        size = self.slot_bytes
        require(size is None or size > 0, f"slot_bytes is {size}; allowed: above 0, or None")

    def __call__(self, graph: Graph, budget: Budget) -> Plan:
        everything = in_slots(graph, budget, [], 0)
        if everything is not None:
            return everything
        (room, buffers), sizes = room_for_weights(graph, budget), budget.sizes(graph)
        slot_bytes = self._slot(budget, max(sizes), room) if buffers > SLOTS else 0
        slots = [slot_bytes] * SLOTS if slot_bytes else []
        max_bytes = budget.max_buffer_bytes // budget.alignment * budget.alignment
        region = ResidentRegion(room - sum(slots), buffers - len(slots), max_bytes)
        rounds = alternate(graph, sizes, region, slot_bytes)
        order = [i for residents, hidden in rounds for i in (*residents, *hidden)]
        offsets = {i: offset for residents, _ in rounds for i, offset in residents.items()}
        chunks = [chunk for _, hidden in rounds for chunk in _chunks(hidden, sizes, slot_bytes)]
        shared = _displaced(rounds, sizes)
        return assemble(graph, budget, order, offsets, region.sizes, slots, chunks, shared)

    def _slot(self, budget: Budget, largest: int, room: int) -> int:
        """Returns a slot's bytes (0: none): as wanted, if the largest operator then has a place."""
        limit = min(room // SLOTS, budget.max_buffer_bytes)
        size = min(budget.aligned(self.slot_bytes or largest), limit)
        if size < largest:
            size = min(size, (room - largest) // SLOTS)
        return size // budget.alignment * budget.alignment


class ResidentRegion(Packer):
    """Offsets for groups of residents. The first one fills buffers from the start; later ones fill
    the same buffers from their ends, where they displace what was used last."""

    _groups = 0

    def begin(self) -> None:
        """Starts the next group. The second one takes all that the first one left of the room."""
        self._groups += 1
        if self._groups == 2:
            del self.sizes[-1:]  # which grows, too
            rest = self._room - sum(self.sizes)
            while rest and len(self.sizes) < self._max_buffers:
                self.sizes.append(min(rest, self._max_bytes))
                rest -= self.sizes[-1]
        self._gaps = regions(0, self.sizes)

    def add(self, size: int) -> int | None:
        """Returns the offset of one more tensor of the group, or None where it does not fit."""
        if self._groups == 1:
            return super().add(size)
        while self._gaps and self._gaps[-1].size < size:
            self._gaps.pop()
        if not self._gaps:
            return None
        start, free = self._gaps[-1]
        self._gaps[-1] = Region(start, free - size)
        return start + free - size


def alternate(
    graph: Graph, sizes: Sequence[int], region: ResidentRegion, slot_bytes: int
) -> list[Round]:
    """Walks through the operators as the paper does; the rounds hold each of them once."""
    left, done, rounds = list(range(len(graph))), set[int](), []
    while left:
        region.begin()
        residents: dict[int, int] = {}
        for index in left:
            offset = region.add(sizes[index])
            if offset is None:
                break
            residents[index] = offset
        left = left[len(residents) :]
        done.update(residents)
        behind = sum(graph.operators[i].compute_ns for i in residents)
        small = [i for i in left if sizes[i] <= slot_bytes]
        hidden = _hidden(graph, small, done, behind)
        if not residents and not hidden:
            hidden = left[:1]  # larger than the region: it takes a slot, and the NPU waits
            operator = graph.operators[left[0]]
            if sizes[left[0]] > slot_bytes:
                raise PlanError(
                    f"operator {operator.name!r} with {operator.weight_bytes:,} bytes fits neither "
                    "into what the buffers of the residents leave, nor into a slot of "
                    f"{slot_bytes:,}"
                )
        done.update(hidden)
        left = [i for i in left if i not in done]
        rounds.append((residents, hidden))
    return rounds


def _hidden(graph: Graph, small: Sequence[int], done: set[int], behind_ns: int) -> list[int]:
    """Returns operators that could run now, whose transfers together take less than some time."""
    taken, spent, ran = [], 0, set(done)
    for index in small:
        operator = graph.operators[index]
        needs = graph.transfer_ns([index]) if operator.weight_bytes else 0
        if spent + needs < behind_ns and ran.issuperset(operator.depends):
            taken.append(index)
            ran.add(index)
            spent += needs
    return taken


def _chunks(hidden: Sequence[int], sizes: Sequence[int], slot_bytes: int) -> Iterator[list[int]]:
    """Yields neighbours among the temporaries that one slot holds."""
    chunk: list[int] = []
    for index in (i for i in hidden if sizes[i]):
        if chunk and sum(sizes[i] for i in chunk) + sizes[index] > slot_bytes:
            yield chunk
            chunk = []
        chunk.append(index)
    if chunk:
        yield chunk


def _displaced(rounds: Sequence[Round], sizes: Sequence[int]) -> list[Transfer]:
    """Returns a transfer for each resident that shares its place with one of another round."""
    placed = sorted(
        (offset, offset + sizes[index], number, index)
        for number, (residents, _) in enumerate(rounds)
        for index, offset in residents.items()
        if sizes[index]
    )
    active: list[tuple[int, int, int]] = []
    shared: set[int] = set()
    for start, end, number, index in placed:
        active = [other for other in active if other[0] > start]
        others = [other for _, theirs, other in active if theirs != number]
        shared.update([index, *others] if others else [])
        active.append((end, number, index))
    return [Transfer((index,), None) for index in sorted(shared)]
