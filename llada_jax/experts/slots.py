"""How many experts an address space holds.

Experts are tensors of the accelerator's address space like any other: what the swap planner's
budget leaves beside what is mapped all the time is divided into slots of one expert each, the same
number for every layer.
"""

from typing import Protocol

from llada_jax.config import require
from llada_jax.experts.shapes import MoEShape


class AddressSpace(Protocol):
    """What `llada_jax.swap.address_budget.Budget` says of a session."""

    @property
    def session_bytes(self) -> int: ...
    @property
    def fixed_bytes(self) -> int: ...
    def aligned(self, size: int) -> int: ...


def slots_within(space: AddressSpace, shape: MoEShape, expert_bytes: int) -> int:
    """Returns the slots of each layer; more than all experts are never needed.

    Raises ValueError where there is not one slot for each layer.
    """
    left = space.session_bytes - space.fixed_bytes
    row = space.aligned(expert_bytes) * shape.n_layers
    require(
        left >= row,
        f"budget is {left} bytes beside what is mapped all the time; allowed: {row} or more, one "
        f"expert of {space.aligned(expert_bytes)} bytes for each of {shape.n_layers} layers",
    )
    return min(left // row, shape.n_experts)


def slots_at_ratio(ratio: float, shape: MoEShape) -> int:
    """Returns the slots of a share of all experts, as the paper gives cache sizes.

    Raises ValueError where that is less than one expert a layer.
    """
    least = 1 / shape.n_experts
    require(
        least <= ratio <= 1,
        f"cache ratio is {ratio}; allowed: {least:g} (one expert of {shape.n_experts}) to 1",
    )
    return int(ratio * shape.n_experts)
