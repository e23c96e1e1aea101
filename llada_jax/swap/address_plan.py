"""What a plan is: where everything lies in the address space, and what is staged when.

A step runs the operators of a graph one after the other, and a denoising loop runs the step again
and again. Weights of some operators are always mapped; those of the others are staged in every
step, in the order in which they are used. An operator waits for its transfer; a transfer waits for
the one before it, and for the last use of what lay where it goes.
"""

from collections.abc import Callable
from typing import NamedTuple

from llada_jax.swap.address_budget import Budget
from llada_jax.swap.graph import Graph


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


Planner = Callable[[Graph, Budget], Plan]
"""Returns a plan within the budget; raises `PlanError`, with the reason, for none."""
