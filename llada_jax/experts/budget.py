"""How many experts an address space holds.

Experts are tensors of the accelerator's address space like any other: what the swap planner's
budget leaves beside the tensors that it keeps is divided into slots of one expert each.
"""

from typing import NamedTuple

from llada_jax.config import require
from llada_jax.experts.machines import MachineProfile
from llada_jax.experts.shapes import MoEShape


class Slots(NamedTuple):
    """The same number of slots for every layer."""

    per_layer: int
    expert_bytes: int
    budget_bytes: int


class ExpertTensor(NamedTuple):
    """One expert as the swap planner counts it."""

    name: str
    bytes: int


def slots_within(budget_bytes: int, shape: MoEShape, machine: MachineProfile) -> Slots:
    """The slots that a budget holds; more than all experts are never needed.

    Raises ValueError where there is not one slot for each layer.
    """
    size = machine.expert_bytes(shape)
    least = size * shape.n_layers
    require(
        budget_bytes >= least,
        f"budget is {budget_bytes} bytes; allowed: {least} or more, one expert of {size} bytes for "
        f"each of {shape.n_layers} layers",
    )
    return Slots(min(budget_bytes // least, shape.n_experts), size, budget_bytes)


def slots_at_ratio(ratio: float, shape: MoEShape, machine: MachineProfile) -> Slots:
    """The slots of a share of all experts, as the paper gives cache sizes."""
    require(0 < ratio <= 1, f"cache ratio is {ratio}; allowed: above 0, up to 1")
    size = machine.expert_bytes(shape)
    return slots_within(int(ratio * shape.n_experts * shape.n_layers * size), shape, machine)


def expert_tensors(shape: MoEShape, machine: MachineProfile) -> list[ExpertTensor]:
    """All experts by name, in the order of layers."""
    size = machine.expert_bytes(shape)
    return [
        ExpertTensor(f"layers.{layer}.experts.{expert}", size)
        for layer in range(shape.n_layers)
        for expert in range(shape.n_experts)
    ]
