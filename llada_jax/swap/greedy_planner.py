"""The planner of the llada.cpp paper (arXiv 2606.13740, section 3.4).

It alternates two kinds of groups. Resident operators fill the resident region. Temporary operators
follow, whose transfers together take less time than the compute of the resident group, so that they
are hidden behind it. Then the next resident group comes, and so on. An operator may run before its
turn if all operators that it reads have run. All resident groups share the region: each group is
mapped after the group before it has run.

The paper does not define what remains mapped for the next step. Here, weights remain if nothing
displaces them: residents that overlap no other group, and temporaries if the two slots hold all.
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

_SLOTS = 2
PUBLISHED_SLOT_BYTES = 128 * MIB
"""Size of each of the two slots in Figure 13c (256 MB together)."""


Round = tuple[dict[int, int], list[int]]
"""Offsets of resident operators by index, and temporary operators. Both are in order of use."""


@dataclass(frozen=True)
class Greedy:
    """The planner."""

    slot_bytes: int | None = None
    """Size of each slot, or None for the size of the largest operator."""

    def __post_init__(self) -> None:
        size = self.slot_bytes
        require(size is None or size > 0, f"slot_bytes is {size}; allowed: above 0, or None")

    def __call__(self, graph: Graph, budget: Budget) -> Plan:
        all_resident = in_slots(graph, budget, [], 0)
        if all_resident is not None:
            return all_resident
        (room, buffers), sizes = room_for_weights(graph, budget), budget.sizes(graph)
        slot_bytes = self._slot_size(budget, max(sizes), room) if buffers > _SLOTS else 0
        slots = [slot_bytes] * _SLOTS if slot_bytes else []
        max_bytes = budget.max_buffer_bytes // budget.alignment * budget.alignment
        region = ResidentRegion(room - sum(slots), buffers - len(slots), max_bytes)
        rounds = alternate(graph, sizes, region, slot_bytes)
        order = [i for residents, temporaries in rounds for i in (*residents, *temporaries)]
        offsets = {i: offset for residents, _ in rounds for i, offset in residents.items()}
        groups = [
            group
            for _, temporaries in rounds
            for group in _split_into_slots(temporaries, sizes, slot_bytes)
        ]
        displaced = _displaced_residents(rounds, sizes)
        return assemble(graph, budget, order, offsets, region.sizes, slots, groups, displaced)

    def _slot_size(self, budget: Budget, largest: int, room: int) -> int:
        """Returns the size of a slot, or 0 for none. The largest operator fits into it, or else
        into the resident region."""
        limit = min(room // _SLOTS, budget.max_buffer_bytes)
        size = min(budget.aligned(self.slot_bytes or largest), limit)
        if size < largest:
            size = min(size, (room - largest) // _SLOTS)
        return size // budget.alignment * budget.alignment


class ResidentRegion(Packer):
    """Assigns offsets to resident groups, which share the region.

    The first group fills the buffers from the start. Later groups fill the same buffers from the
    end, so that they displace the weights that were used last.
    """

    _groups = 0

    def begin(self) -> None:
        """Starts the next group. The second group first adds the room that the first one left."""
        self._groups += 1
        if self._groups == 2:
            del self.sizes[-1:]  # the last buffer grows
            rest = self._room - sum(self.sizes)
            while rest and len(self.sizes) < self._max_buffers:
                self.sizes.append(min(rest, self._max_bytes))
                rest -= self.sizes[-1]
        self._gaps = regions(0, self.sizes)

    def add(self, size: int) -> int | None:
        """Adds a tensor to the group and returns its offset, or returns None if it does not fit."""
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
    """Returns the rounds of the paper's algorithm, which contain every operator once."""
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
        compute_ns = sum(graph.operators[i].compute_ns for i in residents)
        candidates = [i for i in left if sizes[i] <= slot_bytes]
        temporaries = _hidden(graph, candidates, done, compute_ns)
        if not residents and not temporaries:
            # Too large for the region: it is staged through a slot, and the NPU waits.
            temporaries = left[:1]
            operator = graph.operators[left[0]]
            if sizes[left[0]] > slot_bytes:
                raise PlanError(
                    f"operator {operator.name!r} with {operator.weight_bytes:,} bytes fits neither "
                    "into what the buffers of the residents leave, nor into a slot of "
                    f"{slot_bytes:,}"
                )
        done.update(temporaries)
        left = [i for i in left if i not in done]
        rounds.append((residents, temporaries))
    return rounds


def _hidden(graph: Graph, candidates: Sequence[int], done: set[int], compute_ns: int) -> list[int]:
    """Returns operators that can run now, with transfers of less than `compute_ns` together."""
    chosen, transfers_ns, ran = [], 0, set(done)
    for index in candidates:
        operator = graph.operators[index]
        transfer_ns = graph.transfer_ns([index]) if operator.weight_bytes else 0
        if transfers_ns + transfer_ns < compute_ns and ran.issuperset(operator.depends):
            chosen.append(index)
            ran.add(index)
            transfers_ns += transfer_ns
    return chosen


def _split_into_slots(
    temporaries: Sequence[int], sizes: Sequence[int], slot_bytes: int
) -> Iterator[list[int]]:
    """Yields groups of consecutive temporaries that fit into one slot."""
    group: list[int] = []
    for index in (i for i in temporaries if sizes[i]):
        if group and sum(sizes[i] for i in group) + sizes[index] > slot_bytes:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def _displaced_residents(rounds: Sequence[Round], sizes: Sequence[int]) -> list[Transfer]:
    """Returns a transfer for each resident that overlaps a resident of another round."""
    spans = sorted(
        (offset, offset + sizes[index], number, index)
        for number, (residents, _) in enumerate(rounds)
        for index, offset in residents.items()
        if sizes[index]
    )
    active: list[tuple[int, int, int]] = []
    shared: set[int] = set()
    for start, end, number, index in spans:
        active = [other for other in active if other[0] > start]
        others = [other for _, other_round, other in active if other_round != number]
        shared.update([index, *others] if others else [])
        active.append((end, number, index))
    return [Transfer((index,), None) for index in sorted(shared)]
