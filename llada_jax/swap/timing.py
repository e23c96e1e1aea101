"""How long a plan takes: its steady state, exactly.

The step is a system of waits: a transfer starts at the later of two ends (of the transfer before,
of the last use of what lies there), an operator as well (of the operator before, of its transfer).
Such a system is linear in the (max, +) algebra: a step maps a few numbers (when the last transfer
ends, how late some operators are) to the same numbers one step later, and the mean stall of a loop
without end is the largest cycle mean of that small matrix (Baccelli et al., Synchronization and
Linearity, 1992, chapter 3). Whole numbers stay whole, so plans are compared without rounding.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

from llada_jax.swap.graph import Graph
from llada_jax.swap.plan import Plan

NEVER = -(1 << 80)


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
    """The waits of a plan."""
    place = places(plan.order)
    first = [place[transfer.operators[0]] for transfer in plan.transfers]
    ns = [graph.transfer_ns(transfer.operators) for transfer in plan.transfers]
    if plan.prefetch:
        return Waits(first, ns, *_freed_by(plan, place))
    return Waits(first, ns, [(at - 1) % len(place) for at in first], [int(at == 0) for at in first])


def places(order: Sequence[int]) -> list[int]:
    """Place of each operator in the order."""
    place = [0] * len(order)
    for position, index in enumerate(order):
        place[index] = position
    return place


def _freed_by(plan: Plan, place: list[int]) -> tuple[list[int], list[int]]:
    """For each transfer: whose end frees its place, and whether that is in the step before."""
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
    """For each place in the order: the place of the operator that last used some of its bytes.

    Args:
      used: start and size of the weights, by place.
      n: operators of a step. A negative result is a place of the step before, less `n`; a result
        of its own place less `n` says that nobody else uses any of these bytes.
    """
    starts: list[int] = []
    users: list[tuple[int, int, int]] = []  # start, end and place, by start, without overlaps
    latest: dict[int, int] = {}
    for step in (-n, 0):  # the first round finds what the step before leaves behind
        for place in sorted(used):
            start, size = used[place]
            end = start + size
            first = bisect_right(starts, start) - 1
            if first < 0 or users[first][1] <= start:
                first += 1
            last = bisect_left(starts, end)
            gone = users[first:last]
            now = [(start, end, step + place)]
            if gone and gone[0][0] < start:
                now.insert(0, (gone[0][0], start, gone[0][2]))
            if gone and gone[-1][1] > end:
                now.append((end, gone[-1][1], gone[-1][2]))
            users[first:last] = now
            starts[first:last] = [each[0] for each in now]
            latest[place] = max((each[2] for each in gone), default=step + place - n)
    return latest


def prefix_sums(graph: Graph, order: Sequence[int]) -> list[int]:
    """Compute time before each place in the order, and of all."""
    return list(accumulate((graph.operators[i].compute_ns for i in order), initial=0))


def stall_of(graph: Graph, plan: Plan) -> Fraction:
    """Mean time in ns that the NPU waits in a step of a loop without end."""
    return steady_stall(prefix_sums(graph, plan.order), waits_of(graph, plan))


def steady_stall(computed: Sequence[int], waits: Waits) -> Fraction:
    """`stall_of` for waits alone; `computed` is from `prefix_sums`."""
    if not waits.first:
        return Fraction(0)
    users = [bisect_right(waits.first, after) - 1 for after in waits.after]
    carried = sorted({user for user, lag in zip(users, waits.lag, strict=True) if lag})
    columns = []
    for unit in range(2 + len(carried)):
        state = [0 if number == unit else NEVER for number in range(2 + len(carried))]
        columns.append(_next_step(computed, waits, users, carried, state))
    return _largest_cycle_mean(columns)


def _next_step(
    computed: Sequence[int],
    waits: Waits,
    users: Sequence[int],
    carried: Sequence[int],
    state: Sequence[int],
) -> list[int]:
    """State one step later: end of the last transfer, delay at the end, and the carried delays.

    A delay is how much later than without any stall an operator starts; `users` are the transfers
    that decide the delay of the operators in `waits.after` (-1: none of this step).
    """
    transfer_end, delay = state[:2]
    delays_before = dict(zip(carried, state[2:], strict=True))
    delays = {-1: delay}
    step = computed[-1]
    for j, first in enumerate(waits.first):
        after, user = computed[waits.after[j] + 1], users[j]
        free = delays_before[user] + after - step if waits.lag[j] else delays[user] + after
        transfer_end = max(transfer_end, free) + waits.ns[j]
        delay = max(delay, transfer_end - computed[first])
        delays[j] = delay
    return [transfer_end - step, delay, *(delays[user] for user in carried)]


def _largest_cycle_mean(columns: Sequence[Sequence[int]]) -> Fraction:
    """Of a matrix given by its columns (Karp's theorem)."""
    size = len(columns)
    walks = [[0] * size]
    for _ in range(size):
        longest = walks[-1]
        walks.append(
            [max(longest[i] + columns[i][out] for i in range(size)) for out in range(size)]
        )
    best = Fraction(0)
    for node in range(size):
        if walks[size][node] < NEVER // 2:
            continue
        best = max(
            best,
            min(
                Fraction(walks[size][node] - walks[k][node], size - k)
                for k in range(size)
                if walks[k][node] > NEVER // 2
            ),
        )
    return best
