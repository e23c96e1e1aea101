"""Checks a plan without the code that made it: all it believes are the addresses and the times."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from llada_jax.swap.address_space import Budget, Plan, Region
from llada_jax.swap.graph import Graph
from llada_jax.swap.stall_times import unfold, waits_of


class _Live(NamedTuple):
    """Bytes that must not change from one time to another one."""

    start: int
    end: int
    region: Region
    what: str


def problems(graph: Graph, budget: Budget, plan: Plan) -> list[str]:
    """Returns what is wrong with a plan; empty where nothing is.

    It is unfolded over four steps, in which slots that change roles do so in each direction.
    """
    if not graph.is_order(plan.order):
        return [f"the operators cannot run in the order {plan.order}"]
    found = [*_of_transfers(plan), *_of_slots(graph, plan), *_of_buffers(budget, plan)]
    found += _of_places(graph, budget, plan)
    found = found or list(_of_waits(graph, plan))
    return found or [*_of_live_weights(graph, plan)]


def _of_transfers(plan: Plan) -> Iterator[str]:
    staged = [i for transfer in plan.transfers for i in transfer.operators]
    if len(set(staged)) != len(staged):
        yield "an operator is staged twice in a step"
    place = {index: position for position, index in enumerate(plan.order)}
    uses = [[place[i] for i in transfer.operators] for transfer in plan.transfers]
    for transfer, used in zip(plan.transfers, uses, strict=True):
        if not used or used != sorted(used):
            yield f"{transfer} is not in the order of use"
    if uses != sorted(uses):
        yield "transfers are not in the order of use"


def _of_slots(graph: Graph, plan: Plan) -> Iterator[str]:
    through = [transfer for transfer in plan.transfers if transfer.slot is not None]
    slots = [transfer.slot for transfer in through]
    if slots != [rank % max(1, len(plan.slots)) for rank in range(len(slots))]:
        yield f"slots do not alternate: {slots}"
        return
    if len({slot.size for slot in plan.slots}) > 1:
        yield f"slots differ in size: {plan.slots}"
    for rank, transfer in enumerate(through):
        slot = plan.slots[rank % len(plan.slots)]
        for index in transfer.operators:
            if plan.weights[index].size and not slot.holds(plan.weights[index]):
                yield f"{graph.operators[index].name} lies outside of its slot"


def _of_buffers(budget: Budget, plan: Plan) -> Iterator[str]:
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


def _of_places(graph: Graph, budget: Budget, plan: Plan) -> Iterator[str]:
    homes = [*plan.buffers, *plan.slots]
    for operator, weights in zip(graph.operators, plan.weights, strict=True):
        if weights.size < operator.weight_bytes:
            yield f"{operator.name} has too little room"
        if weights.size and weights.start % budget.alignment:
            yield f"weights of {operator.name} at {weights} are not aligned"
        if weights.size and not any(home.holds(weights) for home in homes):
            yield f"weights of {operator.name} at {weights} lie in no buffer"
    for number, transfer in enumerate(plan.transfers):
        places = [plan.weights[i] for i in transfer.operators if plan.weights[i].size]
        if not any(all(map(home.holds, places)) for home in homes):
            yield f"transfer {number} lies in more than one buffer"


def _of_waits(graph: Graph, plan: Plan) -> Iterator[str]:
    for number, (needed_at, _, freed_at, lag) in enumerate(
        zip(*waits_of(graph, plan), strict=True)
    ):
        if not lag and freed_at >= needed_at:
            yield f"transfer {number} waits for an operator that waits for it"


def _of_live_weights(graph: Graph, plan: Plan) -> Iterator[str]:
    """Yields clashes of weights, which live from their transfer's start to the end of their use."""
    steps = unfold(graph, plan, 4)
    used = {(span.step, span.index): span.end for span in steps.operators}
    residents = set(range(len(graph))) - plan.staged
    end = steps.operators[-1].end
    live = [_Live(-1, end, plan.weights[i], graph.operators[i].name) for i in residents]
    through = 0
    for span in steps.transfers:
        transfer = plan.transfers[span.index]
        moved = 0
        if transfer.slot is not None:
            moved = plan.slots[through % len(plan.slots)].start - plan.slots[transfer.slot].start
            through += 1
        for index in transfer.operators:
            region = Region(plan.weights[index].start + moved, plan.weights[index].size)
            name = f"{graph.operators[index].name} of step {span.step}"
            live.append(_Live(span.start, used[span.step, index], region, name))
    yield from _clashes(live)


def _clashes(lives: Sequence[_Live]) -> Iterator[str]:
    active: list[_Live] = []
    for live in sorted(lives):
        active = [other for other in active if other.end > live.start]
        for other in active:
            if other.region.overlaps(live.region):
                yield f"{other.what} and {live.what} overlap while both are needed"
        active.append(live)
