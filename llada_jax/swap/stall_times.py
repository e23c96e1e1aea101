"""How long a plan takes: its first steps, and its steady state, exactly.

The step is a system of waits: a transfer starts at the later of two ends (of the transfer before,
of the last use of what lies there), an operator as well (of the operator before, of its transfer).
Such a system is linear in the (max, +) algebra: a step maps a few numbers (when the last transfer
ends, how late some operators are) to the same numbers one step later, and the mean stall of a loop
without end is the largest mean of a cycle of such waits (Baccelli et al., Synchronization and
Linearity, 1992, chapter 3). Whole numbers stay whole, so plans are compared without rounding.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from llada_jax.config import require
from llada_jax.swap.address_plan import Plan
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
    place = places(plan.order)
    first = [place[transfer.operators[0]] for transfer in plan.transfers]
    ns = [graph.transfer_ns(transfer.operators) for transfer in plan.transfers]
    if plan.prefetch:
        return Waits(first, ns, *_freed_by(plan, place))
    return Waits(first, ns, [(at - 1) % len(place) for at in first], [int(at == 0) for at in first])


def places(order: Sequence[int]) -> list[int]:
    """Returns the place of each operator in the order."""
    place = [0] * len(order)
    for position, index in enumerate(order):
        place[index] = position
    return place


def _freed_by(plan: Plan, place: list[int]) -> tuple[list[int], list[int]]:
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
    """Returns for each place in the order that of the operator that last used some of its bytes.

    Args:
      used: start and size of the weights, by place.
      n: operators of a step. A negative result is a place of the step before, less `n`; a result
        of its own place less `n` says that nobody else uses any of these bytes.
    """
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


def stall_of(graph: Graph, plan: Plan) -> Fraction:
    """Returns the mean time in ns that the NPU waits in a step of a loop without end."""
    return steady_stall(prefix_sums(graph, plan.order), waits_of(graph, plan))


def steady_stall(computed: Sequence[int], waits: Waits) -> Fraction:
    """Returns `stall_of` for waits alone; `computed` is from `prefix_sums`.

    A stall is raised to the mean of every cycle of waits that exceeds it, until none does.
    """
    if not waits.first:
        return Fraction(0)
    step = _Step.of(computed, waits)
    stall = Fraction(0)
    while (longer := step.cycle_above(stall)) is not None:
        stall = longer
    return stall


class _Step(NamedTuple):
    """How a step maps a state to the next one.

    The state is when the last transfer ends, how late the step ends, and how late the operators
    in `carried` are: all that the next step waits for. Late is against a step without any stall.
    """

    computed: Sequence[int]
    waits: Waits
    users: list[int]
    """The last transfer that delays the operator which each transfer waits for; -1 for none."""
    carried: list[int]
    """Users that are waited for in the next step."""

    @classmethod
    def of(cls, computed: Sequence[int], waits: Waits) -> "_Step":
        users = [bisect_right(waits.first, after) - 1 for after in waits.after]
        carried = {user for user, lag in zip(users, waits.lag, strict=True) if lag}
        return cls(computed, waits, users, sorted(carried))

    def cycle_above(self, stall: Fraction) -> Fraction | None:
        """Returns the mean of a cycle if one is larger than `stall`, or None (Bellman and Ford)."""
        size = 2 + len(self.carried)
        state = [0] * size
        parent, weight = [-1] * size, [0] * size
        while True:
            after, origins = self.run(state, stall.denominator)
            grown = False
            for node, origin in enumerate(origins):
                value = after[node] - stall.numerator
                if value > state[node]:
                    grown = True
                    parent[node] = origin
                    weight[node] = (after[node] - state[origin]) // stall.denominator
            if not grown:
                return None
            cycle = _cycle(parent)
            if cycle:
                return Fraction(sum(weight[node] for node in cycle), len(cycle))
            state = [max(v, a - stall.numerator) for v, a in zip(state, after, strict=True)]

    def run(self, state: Sequence[int], scale: int) -> tuple[list[int], list[int]]:
        """Returns the next state, times multiplied by `scale`, and what each one follows from."""
        carried = {user: 2 + number for number, user in enumerate(self.carried)}
        end, end_from, delay, delay_from = state[0], 0, state[1], 1
        delays, delays_from = {-1: delay}, {-1: 1}
        computed, waits, step = self.computed, self.waits, self.computed[-1]
        for j, first in enumerate(waits.first):
            free, user = computed[waits.after[j] + 1] * scale, self.users[j]
            if waits.lag[j]:
                free, free_from = free - step * scale + state[carried[user]], carried[user]
            else:
                free, free_from = free + delays[user], delays_from[user]
            if free > end:
                end, end_from = free, free_from
            end += waits.ns[j] * scale
            if end - computed[first] * scale > delay:
                delay, delay_from = end - computed[first] * scale, end_from
            delays[j], delays_from[j] = delay, delay_from
        after = [end - step * scale, delay, *(delays[user] for user in self.carried)]
        return after, [end_from, delay_from, *(delays_from[user] for user in self.carried)]


def _cycle(parent: Sequence[int]) -> list[int]:
    """Returns the nodes of a cycle of parents, or none; -1 is no parent."""
    seen: dict[int, int] = {}
    for start in range(len(parent)):
        node = start
        while node >= 0 and node not in seen:
            seen[node] = start
            node = parent[node]
        if node >= 0 and seen[node] == start:
            cycle, other = [node], parent[node]
            while other != node:
                cycle.append(other)
                other = parent[other]
            return cycle
    return []
