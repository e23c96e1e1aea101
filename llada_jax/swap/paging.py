"""The two planners without a plan: everything resident, and pages that are loaded on demand."""

from llada_jax.swap.budget import Budget, PlanError
from llada_jax.swap.graph import Graph
from llada_jax.swap.layout import permanent_and_slots, regions, room_for_weights
from llada_jax.swap.plan import Plan, Region, Transfer


def none(graph: Graph, budget: Budget) -> Plan:
    """Every weight is mapped, or nothing runs: llada.cpp's baseline without its runtime."""
    order = range(len(graph))
    plan = permanent_and_slots(graph, budget, order, [], 0)
    if plan is None:
        room = room_for_weights(graph, budget, order)
        raise PlanError(
            f"the weights need {graph.weight_bytes:,} bytes of address space in buffers of up to "
            f"{budget.max_buffer_bytes:,}; left are {room.size:,} bytes in {room.buffers} buffers "
            f"(of {budget.session_bytes:,} in {budget.max_buffers})"
        )
    return plan


def paging(graph: Graph, budget: Budget) -> Plan:
    """The least recently used weights make room, and an operator's weights are mapped when it is due.

    A step uses every weight once. When an operator is due again, all others were used since: with
    this rule it is resident if all weights fit, and else no operator ever is. Its weights go where
    the oldest ones lie, so addresses are those of a ring.
    """
    order = range(len(graph))
    plan = permanent_and_slots(graph, budget, order, [], 0)
    if plan is not None:
        return plan
    room = room_for_weights(graph, budget, order)
    weights, buffers = _ring(graph, budget, room.start, room.size, room.buffers)
    return Plan(
        order=tuple(order),
        transfers=tuple(
            Transfer((i,), None) for i, operator in enumerate(graph.operators)
            if operator.weight_bytes
        ),
        prefetch=False,
        weights=tuple(weights),
        temporaries=room.temporaries,
        buffers=tuple(buffers),
        slots=(),
        fixed=room.fixed,
        arena=room.arena,
    )


def _ring(
    graph: Graph, budget: Budget, start: int, size: int, max_buffers: int
) -> tuple[list[Region], list[Region]]:
    """Addresses one after the other, from the first buffer to the last and again."""
    limit = budget.max_buffer_bytes
    n_buffers = min(max_buffers, -(-size // limit))
    each = min(limit, size // n_buffers // budget.alignment * budget.alignment)
    buffers = regions(start, [each] * n_buffers)
    largest = budget.aligned(max(operator.weight_bytes for operator in graph.operators))
    if largest > each:
        buffers = [Region(start, largest)]
    weights, current, at = [], 0, start
    for operator in graph.operators:
        taken = budget.aligned(operator.weight_bytes)
        if at + taken > buffers[current].end:
            current = (current + 1) % len(buffers)
            at = buffers[current].start
        weights.append(Region(at, operator.weight_bytes))
        at += taken
    return weights, buffers
