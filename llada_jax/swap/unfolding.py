"""A plan as it unfolds over some steps: when every operator and every transfer starts and ends."""

from typing import NamedTuple

from llada_jax.config import require
from llada_jax.swap.address_plan import Plan
from llada_jax.swap.graph import Graph
from llada_jax.swap.stall_times import places, waits_of


class LaneSpan(NamedTuple):
    """When an operator or a transfer of one step starts and ends, in ns."""

    step: int
    index: int
    """Number of the operator in the graph, or of the transfer in the plan."""
    start: int
    end: int


class UnfoldedSteps(NamedTuple):
    """Spans in the order in which they start on their lane."""

    operators: list[LaneSpan]
    transfers: list[LaneSpan]

    @property
    def makespan(self) -> int:
        """End of the last operator."""
        return self.operators[-1].end


def unfold(graph: Graph, plan: Plan, steps: int) -> UnfoldedSteps:
    """Returns the first steps of a loop. Residents are mapped before it, staged weights are not."""
    require(steps > 0, f"steps is {steps}; allowed: 1 or more")
    waits, n = waits_of(graph, plan), len(graph)
    place = places(plan.order)
    transfer_of = {place[t.operators[0]]: j for j, t in enumerate(plan.transfers)}
    operators: list[LaneSpan] = []
    transfers: list[LaneSpan] = []
    now = lane_free = 0
    for step in range(steps):
        for position, index in enumerate(plan.order):
            if position in transfer_of:
                j = transfer_of[position]
                before = (step - waits.lag[j]) * n + waits.after[j]
                start = max(lane_free, operators[before].end if before >= 0 else 0)
                lane_free = start + waits.ns[j]
                transfers.append(LaneSpan(step, j, start, lane_free))
                now = max(now, lane_free)
            end = now + graph.operators[index].compute_ns
            operators.append(LaneSpan(step, index, now, end))
            now = end
    return UnfoldedSteps(operators, transfers)


def startup_ns(graph: Graph, plan: Plan) -> int:
    """Returns the time to map the residents, a mapping for each buffer, before the first step."""
    staged = plan.staged
    residents = [op for i, op in enumerate(graph.operators) if i not in staged]
    return len(plan.buffers) * graph.map_ns + sum(op.transfer_ns for op in residents)
