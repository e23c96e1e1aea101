"""The two planners without a plan: everything resident, and pages that are loaded on demand."""

from collections.abc import Iterator, Sequence

from llada_jax.swap.address_budget import Budget, PlanError
from llada_jax.swap.address_layout import Room, assemble, in_slots, regions, room_for_weights
from llada_jax.swap.address_plan import Plan, Region, Transfer
from llada_jax.swap.graph import Graph


def none(graph: Graph, budget: Budget) -> Plan:
    """Maps every weight, or raises PlanError: llada.cpp's baseline without its runtime."""
    order = range(len(graph))
    plan = in_slots(graph, budget, order, [], 0)
    if plan is None:
        room = room_for_weights(graph, budget, order)
        raise PlanError(
            f"the weights need {graph.weight_bytes:,} bytes of address space in buffers of up to "
            f"{budget.max_buffer_bytes:,}; left are {room.size:,} bytes in {room.buffers} buffers "
            f"(of {budget.session_bytes:,} in {budget.max_buffers})"
        )
    return plan


def paging(graph: Graph, budget: Budget) -> Plan:
    """Maps weights when they are due, where the least recently used ones lie.

    A step uses every weight once. When an operator is due again, all others were used since: with
    this rule it is resident if all weights fit, and else no operator ever is. Its weights go where
    the oldest ones lie, so addresses are those of a ring.
    """
    order = range(len(graph))
    plan = in_slots(graph, budget, order, [], 0)
    if plan is not None:
        return plan
    room = room_for_weights(graph, budget, order)
    each = _ring_buffers(graph, budget, room)
    address = dict(enumerate(_around(graph, budget, regions(room.start, each))))
    staged = [Transfer((i,), None) for i, op in enumerate(graph.operators) if op.weight_bytes]
    return assemble(graph, room, order, staged, address, each, [], prefetch=False)


def _ring_buffers(graph: Graph, budget: Budget, room: Room) -> list[int]:
    """Returns sizes of equal buffers for all of the room; each holds the largest operator."""
    largest = budget.aligned(max(operator.weight_bytes for operator in graph.operators))
    count = min(room.buffers, -(-room.size // budget.max_buffer_bytes))
    each = min(budget.max_buffer_bytes, room.size // count)
    each = each // budget.alignment * budget.alignment
    return [each] * count if each >= largest else [largest]


def _around(graph: Graph, budget: Budget, buffers: Sequence[Region]) -> Iterator[int]:
    """Yields addresses one after the other, from the first buffer to the last and again."""
    current, at = 0, buffers[0].start
    for operator in graph.operators:
        taken = budget.aligned(operator.weight_bytes)
        if at + taken > buffers[current].end:
            current = (current + 1) % len(buffers)
            at = buffers[current].start
        yield at
        at += taken
