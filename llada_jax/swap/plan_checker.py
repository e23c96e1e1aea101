"""An independent checker of plans.

It trusts only the addresses and the transfers of a plan, not the planner that made it. Static rules
(order, slots, buffers, alignment) are checked first. Then four steps are simulated, and no two
weights may overlap while both are needed. After four steps, all slots have changed roles in every
direction.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from llada_jax.swap.address_space import Budget, Plan, Region
from llada_jax.swap.graph import Graph
from llada_jax.swap.stall_times import unfold, waits_of


class _LiveWeights(NamedTuple):
    """Weights that must not be overwritten from `start` to `end`, in ns."""

    start: int
    end: int
    region: Region
    name: str


def problems(graph: Graph, budget: Budget, plan: Plan) -> list[str]:
    """Returns the mistakes of a plan in words; empty for a valid plan."""
    if not graph.is_order(plan.order):
        return [f"the operators cannot run in the order {plan.order}"]
    mistakes = [*_check_transfers(plan), *_check_slots(graph, plan), *_check_buffers(budget, plan)]
    mistakes += _check_weights(graph, budget, plan)
    # Each check needs plans that passed those before it: times cannot be computed for others.
    mistakes = mistakes or [*_check_waits(graph, plan)]
    return mistakes or [*_check_lifetimes(graph, plan)]


def _check_transfers(plan: Plan) -> Iterator[str]:
    staged = [i for transfer in plan.transfers for i in transfer.operators]
    if len(set(staged)) != len(staged):
        yield "an operator is staged twice in a step"
    position = {index: p for p, index in enumerate(plan.order)}
    uses = [[position[i] for i in transfer.operators] for transfer in plan.transfers]
    for transfer, used in zip(plan.transfers, uses, strict=True):
        if not used or used != sorted(used):
            yield f"{transfer} is not in the order of use"
    if uses != sorted(uses):
        yield "transfers are not in the order of use"


def _check_slots(graph: Graph, plan: Plan) -> Iterator[str]:
    slotted = [transfer for transfer in plan.transfers if transfer.slot is not None]
    slots = [transfer.slot for transfer in slotted]
    if slots != [rank % max(1, len(plan.slots)) for rank in range(len(slots))]:
        yield f"slots do not alternate: {slots}"
        return
    if len({slot.size for slot in plan.slots}) > 1:
        yield f"slots differ in size: {plan.slots}"
    for rank, transfer in enumerate(slotted):
        slot = plan.slots[rank % len(plan.slots)]
        for index in transfer.operators:
            if plan.weights[index].size and not slot.holds(plan.weights[index]):
                yield f"{graph.operators[index].name} is outside of its slot"


def _check_buffers(budget: Budget, plan: Plan) -> Iterator[str]:
    parts = [part for part in (*plan.buffers, *plan.slots) if part.size]
    for part in parts:
        if part.size > budget.max_buffer_bytes:
            yield f"{part} is larger than a buffer may be"
        if part.start % budget.alignment:
            yield f"{part} is not aligned"
    if len(parts) + budget.fixed_buffers > budget.max_buffers:
        yield f"{len(parts) + budget.fixed_buffers} buffers; allowed: {budget.max_buffers}"
    if plan.fixed.size < budget.fixed_bytes:
        yield f"{plan.fixed} does not hold keys, values and temporaries"
    everything = sorted([plan.fixed, *parts])
    if everything[0].start < 0 or max(part.end for part in everything) > budget.session_bytes:
        yield f"{everything} are beyond the session's {budget.session_bytes} bytes"
    for one, other in pairwise(everything):
        if one.overlaps(other):
            yield f"{one} and {other} overlap"


def _check_weights(graph: Graph, budget: Budget, plan: Plan) -> Iterator[str]:
    parts = [*plan.buffers, *plan.slots]
    for operator, weights in zip(graph.operators, plan.weights, strict=True):
        if weights.size < operator.weight_bytes:
            yield f"{operator.name} has too little room"
        if weights.size and weights.start % budget.alignment:
            yield f"weights of {operator.name} at {weights} are not aligned"
        if weights.size and not any(part.holds(weights) for part in parts):
            yield f"weights of {operator.name} at {weights} are in no buffer"
    for number, transfer in enumerate(plan.transfers):
        regions = [plan.weights[i] for i in transfer.operators if plan.weights[i].size]
        if not any(all(map(part.holds, regions)) for part in parts):
            yield f"transfer {number} is in more than one buffer"


def _check_waits(graph: Graph, plan: Plan) -> Iterator[str]:
    for number, (needed_at, _, freed_at, lag) in enumerate(
        zip(*waits_of(graph, plan), strict=True)
    ):
        if not lag and freed_at >= needed_at:
            yield f"transfer {number} waits for an operator that waits for it"


def _check_lifetimes(graph: Graph, plan: Plan) -> Iterator[str]:
    """Yields overlaps of weights in use, from their transfer's start to their operator's end."""
    steps = unfold(graph, plan, 4)
    used_until = {(span.step, span.index): span.end for span in steps.operators}
    residents = set(range(len(graph))) - plan.staged
    end = steps.operators[-1].end
    live = [_LiveWeights(-1, end, plan.weights[i], graph.operators[i].name) for i in residents]
    n_slotted = 0
    for span in steps.transfers:
        transfer = plan.transfers[span.index]
        shift = 0  # from the addresses of the first step to those of this one
        if transfer.slot is not None:
            slot = plan.slots[n_slotted % len(plan.slots)]
            shift = slot.start - plan.slots[transfer.slot].start
            n_slotted += 1
        for index in transfer.operators:
            region = Region(plan.weights[index].start + shift, plan.weights[index].size)
            name = f"{graph.operators[index].name} of step {span.step}"
            live.append(_LiveWeights(span.start, used_until[span.step, index], region, name))
    yield from _overlaps(live)


def _overlaps(live: Sequence[_LiveWeights]) -> Iterator[str]:
    active: list[_LiveWeights] = []
    for weights in sorted(live):
        active = [other for other in active if other.end > weights.start]
        for other in active:
            if other.region.overlaps(weights.region):
                yield f"{other.name} and {weights.name} overlap while both are needed"
        active.append(weights)
