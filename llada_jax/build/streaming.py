"""A planner's plan, as the runtime that streams weights takes it."""

from llada_jax.backend.streamed_weights import LayerStaging, StagedLayers
from llada_jax.swap.address_plan import Plan


def staging_of(plan: Plan) -> LayerStaging:
    """Returns what a plan says to the runtime. The plan's operators are the layers; those after
    them, which stand for the host's work between two forwards, have no weights."""
    regions = [plan.weights[layer] for layer in plan.staged]
    everything = [*regions, *(plan.slots if plan.transfers else ())]
    base = min((region.start for region in everything), default=0)
    transfers = []
    for operators, slot in plan.transfers:
        start = base if slot is None else plan.slots[slot].start
        offsets = tuple(plan.weights[layer].start - start for layer in operators)
        transfers.append(StagedLayers(operators, offsets, slot is not None))
    return LayerStaging(
        tuple(transfers),
        max((region.end for region in everything), default=0) - base,
        tuple(slot.start - base for slot in plan.slots),
    )
