"""The NPU's address space: what may be mapped, what a mapping costs, and what lies where in a plan.

A step runs the operators of a graph one after the other, and a denoising loop runs the step again
and again. Weights of some operators are always mapped; those of the others are staged in every
step, in the order in which they are used. An operator waits for its transfer; a transfer waits for
the one before it, and for the last use of what lay where it goes. The address space starts with
keys, values and temporaries, then come the buffers of the weights, which are packed in order of
use, and the slots.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from llada_jax.config import require_counts
from llada_jax.swap.graph import Graph

MIB = 1 << 20


class PlanError(ValueError):
    """A graph that cannot run within a budget, with the reason."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What one session of the NPU may map.

    Defaults: llama.cpp's limits of a session on Hexagon V75 and later (ggml-hexagon.cpp and
    htp-ops.h: 3,200 MiB, 16 buffers of up to 1 GiB). Keys and values count at the length to which
    they will grow: a mapping that must move while a text is generated would cost a stall.
    """

    session_bytes: int = 3200 * MIB
    max_buffers: int = 16
    max_buffer_bytes: int = 1024 * MIB
    alignment: int = 4096
    kv_bytes_per_token: int = 0
    tokens: int = 0
    """Prompt and generated tokens, at the end of a generation."""
    temporary_bytes: int = 0
    """Activations, of which all layers share the place."""

    def __post_init__(self) -> None:
        require_counts(self, "session_bytes", "max_buffers", "max_buffer_bytes", "alignment")
        require_counts(self, "kv_bytes_per_token", "tokens", "temporary_bytes", least=0)

    def aligned(self, size: int) -> int:
        """Returns the bytes of the address space that `size` bytes take."""
        return -(-size // self.alignment) * self.alignment

    def sizes(self, graph: Graph) -> list[int]:
        """Returns the bytes of the address space that each operator's weights take."""
        return [self.aligned(operator.weight_bytes) for operator in graph.operators]

    @property
    def fixed_bytes(self) -> int:
        """Bytes of keys, values and temporaries, which are mapped all the time."""
        return sum(map(self.aligned, self._fixed_parts))

    @property
    def fixed_buffers(self) -> int:
        """Mappings of the fixed bytes."""
        return sum(-(-self.aligned(part) // self.max_buffer_bytes) for part in self._fixed_parts)

    @property
    def _fixed_parts(self) -> tuple[int, int]:
        return self.kv_bytes_per_token * self.tokens, self.temporary_bytes


@dataclass(frozen=True)
class MappingPath:
    """A way to make weights visible to the NPU, with its cost and where that number is from."""

    map_ns: int
    """Time of each mapping."""
    step_ns: int
    """Time once in each step that stages anything, whatever its size."""
    bytes_per_second: float
    """Speed of the bytes; `math.inf` where they stay where they are."""
    tag: str
    source: str

    def price(self, graph: Graph, transfers: int = 0) -> Graph:
        """Returns the graph with this way's transfer times, `step_ns` spread over the transfers of
        a plan; 0 before there is one, since a planner does not know how many it will make."""
        once = self.step_ns // transfers if transfers else 0
        operators = tuple(
            replace(each, transfer_ns=round(each.weight_bytes / self.bytes_per_second * 1e9))
            for each in graph.operators
        )
        return Graph(operators, self.map_ns + once)


class Region(NamedTuple):
    """Part of the address space, in bytes."""

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
    """Weights that are staged at once, by one mapping, in every step."""

    operators: tuple[int, ...]
    """Numbers of the operators, in order of use."""
    slot: int | None
    """The staging slot that takes them in the first step; None where they have places of their own
    that other operators' weights share."""


class Plan(NamedTuple):
    """Addresses of everything, and the transfers of a step.

    Where the number of transfers through the slots is no multiple of the number of slots, the slots
    change roles from one step to the next: the addresses of staged weights are those of the first
    step.
    """

    order: tuple[int, ...]
    """Order in which the operators run."""
    transfers: tuple[Transfer, ...]
    """Transfers of a step in order of first use. Operators of no transfer are resident."""
    weights: tuple[Region, ...]
    """Place of each operator's weights."""
    buffers: tuple[Region, ...]
    """Mapped buffers in which the weights lie that are not in a slot."""
    slots: tuple[Region, ...]
    fixed: Region
    """Keys, values and temporaries."""

    @property
    def staged(self) -> frozenset[int]:
        """Operators whose weights are staged in every step."""
        return frozenset(i for transfer in self.transfers for i in transfer.operators)

    def resident_bytes(self, graph: Graph) -> int:
        """Returns the bytes of the weights that are mapped all the time."""
        staged = self.staged
        return sum(op.weight_bytes for i, op in enumerate(graph.operators) if i not in staged)


def room_for_weights(graph: Graph, budget: Budget) -> tuple[int, int]:
    """Returns bytes and mappings that keys, values and temporaries leave for weights.

    Raises PlanError where no weights fit, or not those of the largest operator.
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
    graph: Graph, budget: Budget, groups: Sequence[Sequence[int]], n_slots: int
) -> Plan | None:
    """Returns a plan in the graph's own order in which groups of operators take turns in the slots,
    and all others stay. Groups are in order of use. Where there are no more of them than slots,
    each would stay in its slot from step to step: then all are residents.

    It is None where it does not fit. Raises PlanError as `room_for_weights`.
    """
    if len(groups) <= n_slots:
        groups, n_slots = [], 0
    (room, buffers), sizes = room_for_weights(graph, budget), budget.sizes(graph)
    slot_bytes = max((sum(sizes[i] for i in group) for group in groups), default=0)
    if slot_bytes > budget.max_buffer_bytes or buffers < n_slots:
        return None
    staged = {i for group in groups for i in group}
    packer = Packer(room - n_slots * slot_bytes, buffers - n_slots, budget.max_buffer_bytes)
    offsets = {}
    for i in (i for i, size in enumerate(sizes) if size and i not in staged):
        offsets[i] = packer.add(sizes[i])
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
    """Returns the plan of all these; operators of no offset and no group have no weights.

    Offsets are places in the buffers, which lie one behind the other, as the slots do. Groups take
    turns in the slots; they stay there where each has one of its own. `displaced`: transfers of
    weights that share their places in the buffers.
    """
    start, sizes = budget.fixed_bytes, budget.sizes(graph)
    placed = regions(start + sum(buffers), slots)
    address = {i: start + offset for i, offset in offsets.items()}
    transfers = [*displaced]
    for rank, group in enumerate(groups):
        slot = rank % len(slots)
        starts = accumulate((sizes[i] for i in group), initial=placed[slot].start)
        address |= dict(zip(group, starts, strict=False))
        transfers += [Transfer(tuple(group), slot)] if len(groups) > len(slots) else []
    place = {index: position for position, index in enumerate(order)}
    transfers.sort(key=lambda transfer: place[transfer.operators[0]])
    weights = (
        Region(address.get(i, start), op.weight_bytes) for i, op in enumerate(graph.operators)
    )
    filled, fixed = tuple(regions(start, buffers)), Region(0, start)
    return Plan(tuple(order), tuple(transfers), tuple(weights), filled, tuple(placed), fixed)


def regions(start: int, sizes: Sequence[int]) -> list[Region]:
    """Returns regions of these sizes, one after the other."""
    starts = accumulate(sizes, initial=start)
    return [Region(at, size) for at, size in zip(starts, sizes, strict=False)]
