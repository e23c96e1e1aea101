"""How long a plan takes, its first steps and its steady state, exactly; and the least of any plan.

The step is a system of waits: a transfer starts at the later of two ends (of the transfer before,
of the last use of what lies there), an operator as well (of the operator before, of its transfer).
Such a system is linear in the (max, +) algebra: a step maps a few numbers (when the last transfer
ends, how late some operators are) to the same numbers one step later, and the mean stall of a loop
without end is the largest mean of a cycle of such waits (Baccelli et al., Synchronization and
Linearity, 1992, chapter 3). Whole numbers stay whole, so plans are compared without rounding.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from llada_jax.config import require
from llada_jax.swap.address_space import Budget, Plan
from llada_jax.swap.graph import Graph


class Waits(NamedTuple):
    """Transfers in order of first use, as the waits that they make."""

    first: list[int]
    """Place in the order of the first operator that waits for it."""
    ns: list[int]
    after: list[int]
    """Place in the order of the operator that must have ended before it starts."""
    lag: list[int]
    """Whether that is the operator of the same step (0), or of the step before (1)."""


def waits_of(graph: Graph, plan: Plan) -> Waits:
    """Returns the waits of a plan."""
    place = {index: position for position, index in enumerate(plan.order)}
    first = [place[transfer.operators[0]] for transfer in plan.transfers]
    ns = [graph.transfer_ns(transfer.operators) for transfer in plan.transfers]
    return Waits(first, ns, *_freed_by(plan, place))


def _freed_by(plan: Plan, place: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """Returns for each transfer whose end frees its place, and if that is in the step before."""
    after, lag = [0] * len(plan.transfers), [0] * len(plan.transfers)
    through = [j for j, transfer in enumerate(plan.transfers) if transfer.slot is not None]
    for rank, j in enumerate(through):
        before = through[rank - len(plan.slots)]
        after[j] = place[plan.transfers[before].operators[-1]]
        lag[j] = int(rank < len(plan.slots))
    sharing = [i for t in plan.transfers if t.slot is None for i in t.operators]
    used = {place[i]: plan.weights[i] for i in sharing}
    latest = last_users(used, len(place))
    for j, transfer in enumerate(plan.transfers):
        if transfer.slot is None:
            user = max(latest[place[i]] for i in transfer.operators)
            after[j], lag[j] = user % len(place), int(user < 0)
    return after, lag


def last_users(used: Mapping[int, tuple[int, int]], n: int) -> dict[int, int]:
    """Returns for each place in the order that of the operator that last used some of its bytes,
    from start and size of the weights by place. Below 0 it is a place of the step before, less `n`
    operators of a step; its own place less `n` says that nobody else uses any of these bytes."""
    places = np.array(sorted(used), np.int64)
    starts, sizes = np.array([used[place] for place in places], np.int64).reshape(-1, 2).T
    ends = starts + sizes
    latest = {}
    for place, start, end in zip(places.tolist(), starts, ends, strict=True):
        others = places[(starts < end) & (ends > start) & (places != place)]
        before = others[others < place]
        latest[place] = int(before[-1] if len(before) else max(others, default=place) - n)
    return latest


def prefix_sums(graph: Graph, order: Sequence[int]) -> list[int]:
    """Returns the compute time before each place in the order, and of all."""
    return list(accumulate((graph.operators[i].compute_ns for i in order), initial=0))


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


def unfold(graph: Graph, plan: Plan, steps: int) -> UnfoldedSteps:
    """Returns the first steps of a loop. Residents are mapped before it, staged weights are not."""
    require(steps > 0, f"steps is {steps}; allowed: 1 or more")
    waits, n = waits_of(graph, plan), len(graph)
    place = {index: position for position, index in enumerate(plan.order)}
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


def staged_bytes(graph: Graph, plan: Plan, steps: int) -> list[tuple[int, int]]:
    """Returns times in ns of the first steps, each with the bytes of staged weights from then on.

    Weights count from the start of their transfer to the end of their operator.
    """
    found, changes = unfold(graph, plan, steps), Counter[int]()
    used = {(span.step, span.index): span.end for span in found.operators}
    for span in found.transfers:
        for i in plan.transfers[span.index].operators:
            changes[span.start] += graph.operators[i].weight_bytes
            changes[used[span.step, i]] -= graph.operators[i].weight_bytes
    times = sorted(changes)
    return list(zip(times, accumulate(changes[time] for time in times), strict=True))


def stall_of(graph: Graph, plan: Plan) -> Fraction:
    """Returns the mean time in ns that the NPU waits in a step of a loop without end."""
    return steady_stall(prefix_sums(graph, plan.order), waits_of(graph, plan))


def steady_stall(computed: Sequence[int], waits: Waits) -> Fraction:
    """Returns `stall_of` for waits alone; `computed` is from `prefix_sums`.

    It runs the loop until a state comes again, but for a shift: then the step's period is known.
    As many steps as the state has numbers are enough for the largest mean of all cycles of waits
    (Karp, A characterization of the minimum cycle mean in a digraph, 1978).
    """
    if not waits.first:
        return Fraction(0)
    # The last transfer that delays the operator which each transfer waits for; -1 for none.
    users = [bisect_right(waits.first, after) - 1 for after in waits.after]
    carried = sorted({user for user, lag in zip(users, waits.lag, strict=True) if lag})
    step = computed[-1]

    def next_state(state: Sequence[int]) -> list[int]:
        """Returns what a step makes of a state: when the last transfer ends, how late the step
        ends, and how late `carried` make operators, against a step without any stall."""
        end, delay, *late = state
        delays, before = {-1: delay}, dict(zip(carried, late, strict=True))
        for j, first in enumerate(waits.first):
            free = computed[waits.after[j] + 1]
            free += before[users[j]] - step if waits.lag[j] else delays[users[j]]
            end = max(end, free) + waits.ns[j]
            delay = delays[j] = max(delay, end - computed[first])
        return [end - step, delay, *(delays[user] for user in carried)]

    states, seen = [[0] * (2 + len(carried))], dict[tuple[int, ...], int]()
    for number in range(len(states[0])):
        state = states[number]
        earlier = seen.setdefault(tuple(value - state[0] for value in state), number)
        if earlier < number:
            return Fraction(state[0] - states[earlier][0], number - earlier)
        states.append(next_state(state))
    *before, last = states
    return max(
        min(Fraction(end - state[n], len(before) - k) for k, state in enumerate(before))
        for n, end in enumerate(last)
    )


_PIECES = 64
_SLACK = 1e-9  # of float64 sums, so that rounding never lifts the bound


def least_step_ns(graph: Graph, budget: Budget) -> int:
    """Returns a time below which no plan's step is, in the mean over a loop without end.

    Compute alone takes its time. And what is not mapped all the time is staged in every step: with
    W bytes of weights in a room of M bytes, while the largest staged operator runs the residents
    lie beside it. So W - M + its size must be staged at the least, which takes the time of a
    fractional knapsack, and the mappings of as many transfers as the place that the residents
    leave, and the size of a buffer, make necessary.
    """
    sizes = np.array([budget.aligned(op.weight_bytes) for op in graph.operators], np.float64)
    staging = np.array([op.transfer_ns for op in graph.operators], np.float64)
    room = budget.session_bytes - budget.fixed_bytes
    excess = float(sizes.sum() - room)
    if excess <= 0:
        return graph.compute_ns
    used = sizes > 0
    lane = _least_staging(sizes[used], staging[used], graph.map_ns, excess, budget.max_buffer_bytes)
    return max(graph.compute_ns, int(lane * (1 - _SLACK)))


def _least_staging(
    sizes: np.ndarray, staging: np.ndarray, map_ns: int, excess: float, buffer_bytes: int
) -> float:
    """Returns the time of transfers, at the best choice of the largest operator that is staged."""
    best = np.inf
    for largest in np.unique(sizes):
        eligible = sizes <= largest
        order = np.argsort(staging[eligible] / sizes[eligible], kind="stable")
        # The corners of the fractional knapsack: the cheapest bytes first.
        bytes_, ns = (np.cumsum(np.append(0.0, each[eligible][order])) for each in (sizes, staging))
        least, most = excess + largest, bytes_[-1]
        if least > most:
            continue
        # More staged bytes take longer, but leave room for fewer, larger transfers.
        edges = excess + np.geomspace(largest, most - excess, _PIECES + 1)
        edges[0], edges[-1] = least, most
        in_buffers = np.maximum(edges[1:] / (edges[1:] - excess), edges[:-1] / buffer_bytes)
        transfers = np.ceil(in_buffers * (1 - _SLACK))
        totals = np.interp(edges[:-1], bytes_, ns) + map_ns * np.maximum(transfers, 2)
        best = min(best, float(totals.min()))
    return best if np.isfinite(best) else 0.0
