"""Exact times of a swap plan in a loop of steps, and a lower bound for any plan.

A transfer starts when the transfer before it has ended and when the last operator that uses its
destination has ended. An operator starts when the operator before it and its own transfer have
ended. Only maxima and sums occur, so a step is a linear map in the (max, +) algebra. Its state has
a few numbers: when the last transfer ends, and how late some operators are. The mean stall of an
endless loop is the eigenvalue of this map, the largest mean weight of a cycle (Baccelli et al.,
Synchronization and Linearity, 1992, chapter 3). Times are whole nanoseconds and means are
fractions, so plans are compared without rounding errors.

A position is the index of an operator in the plan's order.
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


class TransferWaits(NamedTuple):
    """What each transfer of a step waits for, and what waits for it, in order of first use."""

    needed_at: list[int]
    """Position of the first operator that needs the weights."""
    ns: list[int]
    """Duration of the transfer."""
    freed_at: list[int]
    """Position of the operator whose end frees the destination."""
    lag: list[int]
    """1 if that operator runs in the step before, 0 if in the same step."""


def waits_of(graph: Graph, plan: Plan) -> TransferWaits:
    position = {index: p for p, index in enumerate(plan.order)}
    needed_at = [position[transfer.operators[0]] for transfer in plan.transfers]
    ns = [graph.transfer_ns(transfer.operators) for transfer in plan.transfers]
    return TransferWaits(needed_at, ns, *_freed_at(plan, position))


def _freed_at(plan: Plan, position: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """Returns `freed_at` and `lag` of `TransferWaits`."""
    n = len(position)
    freed_at, lag = [0] * len(plan.transfers), [0] * len(plan.transfers)
    # Slots take turns: a slot is freed by the transfer that used it one round before.
    slotted = [j for j, transfer in enumerate(plan.transfers) if transfer.slot is not None]
    for rank, j in enumerate(slotted):
        previous = slotted[rank - len(plan.slots)]
        freed_at[j] = position[plan.transfers[previous].operators[-1]]
        lag[j] = int(rank < len(plan.slots))
    # Other transfers have fixed addresses, which they share with other staged weights.
    sharing = [i for t in plan.transfers if t.slot is None for i in t.operators]
    latest = last_users({position[i]: plan.weights[i] for i in sharing}, n)
    for j, transfer in enumerate(plan.transfers):
        if transfer.slot is None:
            user = max(latest[position[i]] for i in transfer.operators)
            freed_at[j], lag[j] = user % n, int(user < 0)
    return freed_at, lag


def last_users(regions: Mapping[int, tuple[int, int]], n: int) -> dict[int, int]:
    """Returns, for each position, the position that used some of its bytes most recently.

    Args:
      regions: start and size of the weights of an operator by its position.
      n: number of operators in a step.

    A position of the step before is given minus `n`. If no other operator uses any of the bytes,
    the result is the position itself, one step before.
    """
    positions = np.array(sorted(regions), np.int64)
    starts, sizes = np.array([regions[p] for p in positions], np.int64).reshape(-1, 2).T
    ends = starts + sizes
    latest = {}
    for position, start, end in zip(positions.tolist(), starts, ends, strict=True):
        others = positions[(starts < end) & (ends > start) & (positions != position)]
        earlier = others[others < position]
        latest[position] = int(earlier[-1] if len(earlier) else max(others, default=position) - n)
    return latest


def prefix_sums(graph: Graph, order: Sequence[int]) -> list[int]:
    """Returns the compute time before each position, and the total as the last item."""
    return list(accumulate((graph.operators[i].compute_ns for i in order), initial=0))


class LaneSpan(NamedTuple):
    """Start and end of an operator or a transfer in one step, in ns."""

    step: int
    index: int
    """Index of the operator in the graph, or of the transfer in the plan."""
    start: int
    end: int


class UnfoldedSteps(NamedTuple):
    """Spans of several steps, ordered by start."""

    operators: list[LaneSpan]
    transfers: list[LaneSpan]


def unfold(graph: Graph, plan: Plan, steps: int) -> UnfoldedSteps:
    """Simulates the first steps of a loop.

    Resident weights are mapped before the loop starts; staged weights are not.
    """
    require(steps > 0, f"steps is {steps}; allowed: 1 or more")
    waits, n = waits_of(graph, plan), len(graph)
    position = {index: p for p, index in enumerate(plan.order)}
    transfer_at = {position[t.operators[0]]: j for j, t in enumerate(plan.transfers)}
    operators: list[LaneSpan] = []
    transfers: list[LaneSpan] = []
    now = transfers_end = 0
    for step in range(steps):
        for p, index in enumerate(plan.order):
            if p in transfer_at:
                j = transfer_at[p]
                freed_by = (step - waits.lag[j]) * n + waits.freed_at[j]
                start = max(transfers_end, operators[freed_by].end if freed_by >= 0 else 0)
                transfers_end = start + waits.ns[j]
                transfers.append(LaneSpan(step, j, start, transfers_end))
                now = max(now, transfers_end)
            end = now + graph.operators[index].compute_ns
            operators.append(LaneSpan(step, index, now, end))
            now = end
    return UnfoldedSteps(operators, transfers)


def staged_bytes(graph: Graph, plan: Plan, steps: int) -> list[tuple[int, int]]:
    """Returns the bytes of staged weights in use over the first steps, as (ns, bytes from then on).

    Weights are in use from the start of their transfer to the end of their operator.
    """
    unfolded, changes = unfold(graph, plan, steps), Counter[int]()
    used_until = {(span.step, span.index): span.end for span in unfolded.operators}
    for span in unfolded.transfers:
        for i in plan.transfers[span.index].operators:
            changes[span.start] += graph.operators[i].weight_bytes
            changes[used_until[span.step, i]] -= graph.operators[i].weight_bytes
    times = sorted(changes)
    return list(zip(times, accumulate(changes[time] for time in times), strict=True))


def stall_of(graph: Graph, plan: Plan) -> Fraction:
    """Returns the mean stall of the NPU per step of an endless loop, in ns."""
    return steady_stall(prefix_sums(graph, plan.order), waits_of(graph, plan))


def steady_stall(computed: Sequence[int], waits: TransferWaits) -> Fraction:
    """Returns the mean stall per step of an endless loop, in ns.

    Args:
      computed: compute time before each position (`prefix_sums`).

    Steps are simulated until a state is equal to an earlier one except for a shift of all its
    numbers. From then on it repeats, and the mean stall is the shift per step. If this does not
    happen within as many steps as the state has numbers, these steps determine the mean by Karp's
    theorem (A characterization of the minimum cycle mean in a digraph, 1978).
    """
    if not waits.needed_at:
        return Fraction(0)
    # The delay of an operator is the delay after the last transfer at or before its position.
    # This is the index of that transfer for each `freed_at`, or -1 if there is none.
    delayed_by = [bisect_right(waits.needed_at, p) - 1 for p in waits.freed_at]
    # Delays of the step before that this step depends on: the rest of the state.
    carried = sorted({d for d, lag in zip(delayed_by, waits.lag, strict=True) if lag})
    step_ns = computed[-1]

    def next_state(state: Sequence[int]) -> list[int]:
        """Returns the state after a step.

        Times count from the moment at which the step would start in a loop without stalls, in which
        position p would start at `computed[p]`. A delay is the difference from that loop. The state
        is: end of the last transfer, delay at the end of the step, delays of the `carried`
        transfers.
        """
        end, delay, *carried_delays = state
        # The entry -1 is for operators before the first transfer of a step.
        delays, previous = {-1: delay}, dict(zip(carried, carried_delays, strict=True))
        for j, position in enumerate(waits.needed_at):
            freed = computed[waits.freed_at[j] + 1]
            if waits.lag[j]:
                freed += previous[delayed_by[j]] - step_ns
            else:
                freed += delays[delayed_by[j]]
            end = max(end, freed) + waits.ns[j]
            delay = delays[j] = max(delay, end - computed[position])
        return [end - step_ns, delay, *(delays[d] for d in carried)]

    states, first_seen = [[0] * (2 + len(carried))], dict[tuple[int, ...], int]()
    for step in range(len(states[0])):
        state = states[step]
        earlier = first_seen.setdefault(tuple(value - state[0] for value in state), step)
        if earlier < step:
            return Fraction(state[0] - states[earlier][0], step - earlier)
        states.append(next_state(state))
    *before, last = states
    return max(
        min(Fraction(end - state[n], len(before) - k) for k, state in enumerate(before))
        for n, end in enumerate(last)
    )


_INTERVALS = 64  # of the number of staged bytes in the lower bound
_ROUNDING = 1e-9
"""Relative error of float64 sums. The bound is lowered by it, so that rounding never raises it."""


def least_step_ns(graph: Graph, budget: Budget) -> int:
    """Returns a lower bound of the mean step time of any plan, in ns.

    A step takes at least its compute time. It also takes at least the time of its transfers: with W
    bytes of weights in a room of M bytes, everything that is not resident is staged in every step.
    While the largest staged operator runs, its weights and all residents are in the room. So at
    least W - M plus the size of that operator is staged. The bytes with the shortest staging time
    are chosen (a fractional knapsack), and their number of mappings is at least what the free room
    and the size of a buffer make necessary.
    """
    sizes = np.array([budget.aligned(op.weight_bytes) for op in graph.operators], np.float64)
    staging = np.array([op.transfer_ns for op in graph.operators], np.float64)
    room = budget.session_bytes - budget.fixed_bytes
    excess = float(sizes.sum() - room)
    if excess <= 0:
        return graph.compute_ns
    used = sizes > 0
    transfer_ns = _least_transfer_ns(
        sizes[used], staging[used], graph.map_ns, excess, budget.max_buffer_bytes
    )
    return max(graph.compute_ns, int(transfer_ns * (1 - _ROUNDING)))


def _least_transfer_ns(
    sizes: np.ndarray, staging: np.ndarray, map_ns: int, excess: float, buffer_bytes: int
) -> float:
    """Returns the least time of a step's transfers over all sizes of the largest staged operator.

    Args:
      excess: bytes of the weights that exceed the room.
    """
    best = np.inf
    for largest in np.unique(sizes):
        eligible = sizes <= largest
        order = np.argsort(staging[eligible] / sizes[eligible], kind="stable")
        # Corners of the knapsack's cost: the bytes with the shortest staging time come first.
        knapsack_bytes = np.cumsum(np.append(0.0, sizes[eligible][order]))
        knapsack_ns = np.cumsum(np.append(0.0, staging[eligible][order]))
        least, most = excess + largest, knapsack_bytes[-1]
        if least > most:
            continue
        # Staging more bytes takes longer, but leaves more free room, and so fewer, larger mappings.
        # In each interval, its start bounds the staging time and its end bounds the mappings.
        edges = excess + np.geomspace(largest, most - excess, _INTERVALS + 1)
        edges[0], edges[-1] = least, most
        mappings = np.maximum(edges[1:] / (edges[1:] - excess), edges[:-1] / buffer_bytes)
        # At least 2: if one mapping were enough, nothing would displace its weights.
        mappings = np.maximum(np.ceil(mappings * (1 - _ROUNDING)), 2)
        totals = np.interp(edges[:-1], knapsack_bytes, knapsack_ns) + map_ns * mappings
        best = min(best, float(totals.min()))
    return best if np.isfinite(best) else 0.0
