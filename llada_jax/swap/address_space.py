"""The NPU's address space: budgets, costs of mapping, and plans with an address for all weights.

A step runs the operators of a graph one after the other, and decoding repeats the step in a loop.
The weights of some operators are resident: always mapped. The others are staged in every step, in
order of use. An operator waits for its transfer. A transfer waits for the transfer before it, and
for the last use of the weights that it displaces.

The address space begins with keys, values and temporaries. The buffers of weights follow, packed in
order of use, and then the slots, which staged weights use in turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from llada_jax.config import require_counts
from llada_jax.swap.graph import Graph

MIB = 1 << 20


class PlanError(ValueError):
    """Raised with the reason if a graph cannot run within a budget."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of the memory that one session of the NPU maps.

    The defaults are llama.cpp's limits on Hexagon V75 and later (ggml-hexagon.cpp and htp-ops.h:
    3,200 MiB, 16 buffers of up to 1 GiB). Keys and values count at their final length, since moving
    a mapping during a generation would cost a stall.
    """

    session_bytes: int = 3200 * MIB
    max_buffers: int = 16
    max_buffer_bytes: int = 1024 * MIB
    alignment: int = 4096
    kv_bytes_per_token: int = 0
    tokens: int = 0
    """Prompt and generated tokens at the end of a generation."""
    temporary_bytes: int = 0
    """Activations. All layers share the same memory."""

    def __post_init__(self) -> None:
        require_counts(self, "session_bytes", "max_buffers", "max_buffer_bytes", "alignment")
        require_counts(self, "kv_bytes_per_token", "tokens", "temporary_bytes", least=0)

    def aligned(self, size: int) -> int:
        """Returns the size rounded up to the alignment."""
        return -(-size // self.alignment) * self.alignment

    def sizes(self, graph: Graph) -> list[int]:
        """Returns the aligned size of each operator's weights."""
        return [self.aligned(operator.weight_bytes) for operator in graph.operators]

    @property
    def fixed_bytes(self) -> int:
        """Aligned size of keys, values and temporaries, which are always mapped."""
        return sum(map(self.aligned, self._fixed_parts))

    @property
    def fixed_buffers(self) -> int:
        """Number of buffers of keys, values and temporaries."""
        return sum(-(-self.aligned(part) // self.max_buffer_bytes) for part in self._fixed_parts)

    @property
    def _fixed_parts(self) -> tuple[int, int]:
        return self.kv_bytes_per_token * self.tokens, self.temporary_bytes


@dataclass(frozen=True)
class MappingPath:
    """Costs of a way to make weights visible to the NPU."""

    map_ns: int
    """Fixed time of each transfer."""
    step_ns: int
    """Fixed time of each step that stages weights."""
    bytes_per_second: float
    """Copy rate, or `math.inf` if the bytes are mapped without a copy."""
    tag: str
    """How the costs are known (`phones.profile.Tag`)."""
    source: str

    def price(self, graph: Graph, transfers: int = 0) -> Graph:
        """Returns the graph with the transfer times of this path.

        Args:
          transfers: number of transfers per step of the plan, over which `step_ns` is spread. 0
            before there is a plan, which leaves `step_ns` out.
        """
        step_share = self.step_ns // transfers if transfers else 0
        operators = tuple(
            replace(op, transfer_ns=round(op.weight_bytes / self.bytes_per_second * 1e9))
            for op in graph.operators
        )
        return Graph(operators, self.map_ns + step_share)


class Region(NamedTuple):
    """Part of the address space in bytes."""

    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size

    def overlaps(self, other: "Region") -> bool:
        return max(self.start, other.start) < min(self.end, other.end)

    def holds(self, other: "Region") -> bool:
        return self.start <= other.start and other.end <= self.end


class Transfer(NamedTuple):
    """Weights that are staged together in every step, as one mapping."""

    operators: tuple[int, ...]
    """Indices of the operators in order of use."""
    slot: int | None
    """Index of the slot in the first step, or None if the weights have fixed addresses, which they
    share with other staged weights."""


class Plan(NamedTuple):
    """The addresses of all weights, and the transfers of a step.

    If the number of transfers through slots is not a multiple of the number of slots, a transfer
    uses different slots in different steps. Its addresses here are those of the first step.
    """

    order: tuple[int, ...]
    """Indices of the operators in the order in which they run."""
    transfers: tuple[Transfer, ...]
    """Transfers of a step in order of first use. Operators without a transfer are resident."""
    weights: tuple[Region, ...]
    """Address of each operator's weights, by index."""
    buffers: tuple[Region, ...]
    """Mapped buffers of the weights that are not in slots."""
    slots: tuple[Region, ...]
    fixed: Region
    """Keys, values and temporaries."""

    @property
    def staged(self) -> frozenset[int]:
        """Indices of the staged operators."""
        return frozenset(i for transfer in self.transfers for i in transfer.operators)

    def resident_bytes(self, graph: Graph) -> int:
        staged = self.staged
        return sum(op.weight_bytes for i, op in enumerate(graph.operators) if i not in staged)


def room_for_weights(graph: Graph, budget: Budget) -> tuple[int, int]:
    """Returns the bytes and the number of buffers that the budget leaves for weights.

    Raises PlanError if the weights of the largest operator do not fit.
    """
    fixed, buffers = budget.fixed_bytes, budget.max_buffers - budget.fixed_buffers
    size = (budget.session_bytes - fixed) // budget.alignment * budget.alignment
    if size < 0 or buffers < 0:
        raise PlanError(
            f"keys, values and temporaries take {fixed:,} bytes in {budget.fixed_buffers} "
            f"buffers; allowed: {budget.session_bytes:,} in {budget.max_buffers}"
        )
    largest = max(graph.operators, key=lambda operator: operator.weight_bytes)
    limit = min(size, budget.max_buffer_bytes if buffers > 0 else 0)
    if budget.aligned(largest.weight_bytes) > limit:
        raise PlanError(
            f"operator {largest.name!r} needs {largest.weight_bytes:,} bytes at once; the budget "
            f"leaves {limit:,} (of {budget.session_bytes:,}, keys, values and temporaries "
            f"take {fixed:,})"
        )
    return size, buffers


class Packer:
    """Packs tensors into buffers in order of use, so that neighbours share a buffer."""

    def __init__(self, room: int, max_buffers: int, max_buffer_bytes: int):
        self._room, self._max_buffers, self._max_bytes = room, max_buffers, max_buffer_bytes
        self.sizes: list[int] = []
        """Size of each buffer."""
        self.used = 0
        """Size of all buffers together."""

    def add(self, size: int) -> int | None:
        """Adds a tensor and returns its offset, or returns None if it does not fit."""
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
    graph: Graph, budget: Budget, groups: Sequence[Sequence[int]], n_slots: int
) -> Plan | None:
    """Returns a plan in the order of the graph: groups of operators use the slots in turn, and all
    other operators are resident.

    Args:
      groups: indices of the operators of each transfer, in order of use.

    Returns None if the plan does not fit. Raises PlanError like `room_for_weights`.
    """
    # With as many slots as groups, nothing would displace a group: it would be resident.
    if len(groups) <= n_slots:
        groups, n_slots = [], 0
    (room, buffers), sizes = room_for_weights(graph, budget), budget.sizes(graph)
    slot_bytes = max((sum(sizes[i] for i in group) for group in groups), default=0)
    if slot_bytes > budget.max_buffer_bytes or buffers < n_slots:
        return None
    staged = {i for group in groups for i in group}
    packer = Packer(room - n_slots * slot_bytes, buffers - n_slots, budget.max_buffer_bytes)
    offsets = {}
    for i, size in enumerate(sizes):
        if size and i not in staged:
            offsets[i] = packer.add(size)
            if offsets[i] is None:
                return None
    slots = [slot_bytes] * n_slots
    return assemble(graph, budget, range(len(graph)), offsets, packer.sizes, slots, groups)


def assemble(
    graph: Graph,
    budget: Budget,
    order: Sequence[int],
    offsets: Mapping[int, int],
    buffers: Sequence[int],
    slots: Sequence[int] = (),
    groups: Sequence[Sequence[int]] = (),
    displaced: Sequence[Transfer] = (),
) -> Plan:
    """Builds a plan from offsets and groups, and computes all addresses.

    Args:
      order: indices of the operators in the order in which they run.
      offsets: offset of an operator's weights in the buffers, by index.
      buffers: sizes of the buffers, which are contiguous.
      slots: sizes of the slots, which follow the buffers.
      groups: indices of the operators of each transfer through the slots. If there are no more
        groups than slots, they are resident there.
      displaced: transfers of weights that share their offsets with other weights.

    Operators in neither `offsets` nor `groups` must not have weights.
    """
    start, sizes = budget.fixed_bytes, budget.sizes(graph)
    slot_regions = regions(start + sum(buffers), slots)
    address = {i: start + offset for i, offset in offsets.items()}
    transfers = [*displaced]
    for rank, group in enumerate(groups):
        slot = rank % len(slots)
        starts = accumulate((sizes[i] for i in group), initial=slot_regions[slot].start)
        address |= dict(zip(group, starts, strict=False))
        transfers += [Transfer(tuple(group), slot)] if len(groups) > len(slots) else []
    position = {index: p for p, index in enumerate(order)}
    transfers.sort(key=lambda transfer: position[transfer.operators[0]])
    weights = (
        Region(address.get(i, start), op.weight_bytes) for i, op in enumerate(graph.operators)
    )
    return Plan(
        order=tuple(order),
        transfers=tuple(transfers),
        weights=tuple(weights),
        buffers=tuple(regions(start, buffers)),
        slots=tuple(slot_regions),
        fixed=Region(0, start),
    )


def regions(start: int, sizes: Sequence[int]) -> list[Region]:
    """Returns contiguous regions of these sizes."""
    starts = accumulate(sizes, initial=start)
    return [Region(begin, size) for begin, size in zip(starts, sizes, strict=False)]
