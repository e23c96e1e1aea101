"""Checks a plan without the code that made it: all it believes are the addresses and the times."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from llada_jax.swap.address_budget import Budget
from llada_jax.swap.address_plan import Plan, Region
from llada_jax.swap.graph import Graph
from llada_jax.swap.unfolding import Schedule, unfold


class _Live(NamedTuple):
    """Bytes that must not change from one time to another one."""

    start: int
    end: int
    region: Region
    what: str


def problems(
    graph: Graph, budget: Budget, plan: Plan, schedule: Schedule | None = None
) -> list[str]:
    """What is wrong with a plan, and with its first steps; empty where nothing is.

    `schedule` is what to check them by; default: four steps, in which slots that change roles do so
    in each direction.
    """
    if not graph.is_order(plan.order):
        return [f"the operators cannot run in the order {plan.order}"]
    found = [*_of_transfers(graph, plan), *_of_the_address_space(graph, budget, plan)]
    if found:
        return found
    schedule = schedule or unfold(graph, plan, 4)
    found += _of_the_lanes(graph, plan, schedule)
    return found or [*_of_live_weights(graph, plan, schedule), *_of_temporaries(graph, plan)]


def _of_transfers(graph: Graph, plan: Plan) -> Iterator[str]:
    staged = [i for transfer in plan.transfers for i in transfer.operators]
    if len(set(staged)) != len(staged):
        yield "an operator is staged twice in a step"
    place = {index: position for position, index in enumerate(plan.order)}
    for transfer in plan.transfers:
        used = [place[i] for i in transfer.operators]
        if not used or used != sorted(used):
            yield f"{transfer} is not in the order of use"
    firsts = [place[transfer.operators[0]] for transfer in plan.transfers]
    if firsts != sorted(firsts):
        yield "transfers are not in the order of use"
    slots = [transfer.slot for transfer in plan.transfers if transfer.slot is not None]
    if slots != [rank % max(1, len(plan.slots)) for rank in range(len(slots))]:
        yield f"slots do not alternate: {slots}"
    if len({slot.size for slot in plan.slots}) > 1:
        yield f"slots differ in size: {plan.slots}"


def _of_the_address_space(graph: Graph, budget: Budget, plan: Plan) -> Iterator[str]:
    parts = [part for part in (plan.arena, *plan.buffers, *plan.slots) if part.size]
    for part in parts:
        if part.size > budget.max_buffer_bytes:
            yield f"{part} is larger than a buffer may be"
        if part.start % budget.alignment:
            yield f"{part} is not aligned"
    if len(parts) + budget.fixed_buffers > budget.max_buffers:
        yield f"{len(parts) + budget.fixed_buffers} buffers; allowed: {budget.max_buffers}"
    if plan.fixed.size < budget.fixed_bytes:
        yield f"{plan.fixed} does not hold keys, values and the runtime's own"
    everything = sorted([plan.fixed, *parts])
    if everything[0].start < 0 or max(part.end for part in everything) > budget.session_bytes:
        yield f"{everything} are beyond the session's {budget.session_bytes} bytes"
    for one, other in pairwise(everything):
        if one.overlaps(other):
            yield f"{one} and {other} overlap"
    homes = [*plan.buffers, *plan.slots]
    for index, operator in enumerate(graph.operators):
        weights, output = plan.weights[index], plan.temporaries[index]
        if weights.size < operator.weight_bytes or output.size < operator.temporary_bytes:
            yield f"{operator.name} has too little room"
        if weights.size and weights.start % budget.alignment:
            yield f"weights of {operator.name} at {weights} are not aligned"
        if weights.size and not any(home.holds(weights) for home in homes):
            yield f"weights of {operator.name} at {weights} lie in no buffer"
        if output.size and not plan.arena.holds(output):
            yield f"output of {operator.name} at {output} lies outside of the arena"
    for transfer in plan.transfers:
        for index in transfer.operators:
            slot = None if transfer.slot is None else plan.slots[transfer.slot]
            if slot and plan.weights[index].size and not slot.holds(plan.weights[index]):
                yield f"{graph.operators[index].name} lies outside of its slot"


def _of_the_lanes(graph: Graph, plan: Plan, schedule: Schedule) -> Iterator[str]:
    steps = range(schedule.operators[-1].step + 1)
    wanted = [(step, index) for step in steps for index in plan.order]
    if [(event.step, event.index) for event in schedule.operators] != wanted:
        yield "the operators do not run in the plan's order"
        return
    wanted = [(step, index) for step in steps for index in range(len(plan.transfers))]
    if [(event.step, event.index) for event in schedule.transfers] != wanted:
        yield "the transfers do not run in the plan's order"
        return
    for lane, name in ((schedule.operators, "operators"), (schedule.transfers, "transfers")):
        if any(after.start < before.end for before, after in pairwise(lane)):
            yield f"two {name} run at once"
    for event in schedule.operators:
        if event.end - event.start < graph.operators[event.index].compute_ns:
            yield f"{graph.operators[event.index].name} ends too early in step {event.step}"
    staged = {}
    for event in schedule.transfers:
        members = plan.transfers[event.index].operators
        if event.end - event.start < graph.transfer_ns(members):
            yield f"transfer {event.index} ends too early in step {event.step}"
        staged |= {(event.step, index): event.end for index in members}
    for event in schedule.operators:
        if event.start < staged.get((event.step, event.index), 0):
            yield f"{graph.operators[event.index].name} runs before it is staged"


def _of_live_weights(graph: Graph, plan: Plan, schedule: Schedule) -> Iterator[str]:
    """Staged weights live from the start of their transfer to the end of their use."""
    used = {(event.step, event.index): event.end for event in schedule.operators}
    residents = set(range(len(graph))) - plan.staged
    live = [
        _Live(-1, schedule.makespan, plan.weights[i], graph.operators[i].name) for i in residents
    ]
    through = 0
    for event in schedule.transfers:
        transfer = plan.transfers[event.index]
        moved = 0
        if transfer.slot is not None:
            moved = plan.slots[through % len(plan.slots)].start - plan.slots[transfer.slot].start
            through += 1
        for index in transfer.operators:
            region = Region(plan.weights[index].start + moved, plan.weights[index].size)
            name = f"{graph.operators[index].name} of step {event.step}"
            live.append(_Live(event.start, used[event.step, index], region, name))
    yield from _clashes(live)


def _of_temporaries(graph: Graph, plan: Plan) -> Iterator[str]:
    """An output lives until its last reader has run; here a time is a place in the order."""
    place = {index: position for position, index in enumerate(plan.order)}
    last = dict(place)
    for index, operator in enumerate(graph.operators):
        for other in operator.depends:
            last[other] = max(last[other], place[index])
    yield from _clashes(
        [
            _Live(place[i], last[i] + 1, plan.temporaries[i], f"the output of {operator.name}")
            for i, operator in enumerate(graph.operators)
        ]
    )


def _clashes(lives: Sequence[_Live]) -> Iterator[str]:
    active: list[_Live] = []
    for live in sorted(lives):
        active = [other for other in active if other.end > live.start]
        for other in active:
            if other.region.overlaps(live.region):
                yield f"{other.what} and {live.what} overlap while both are needed"
        active.append(live)
