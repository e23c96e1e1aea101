"""Plans in slots whose transfers are spread over the step as the compute is.

Slots hold little, so a transfer can start only shortly before its operators run: what is staged
hides behind the compute of its own neighbourhood. So in every part of the step as much is staged as
the part has of the compute time. Exchanges of neighbours then repair what the rule leaves.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from random import Random
from typing import NamedTuple

from llada_jax.swap.address_budget import Budget
from llada_jax.swap.address_layout import in_slots, room_for_weights
from llada_jax.swap.address_plan import Plan
from llada_jax.swap.graph import Graph
from llada_jax.swap.stall_times import Waits, prefix_sums, steady_stall

STAYS, JOINS, HEAD = 0, 1, 2
"""What becomes of an operator: always mapped, staged with the one staged before, or a transfer of
its own that others may join."""

Cost = tuple[Fraction, int]
"""Stall of a step, and time of its transfers, ns; smaller is better."""


class Problem(NamedTuple):
    """A graph in one order, as lists by place."""

    graph: Graph
    budget: Budget
    order: tuple[int, ...]
    sizes: list[int]
    transfer_ns: list[int]
    computed: list[int]
    """Compute time before each place, and of all."""
    room: int

    @classmethod
    def of(cls, graph: Graph, budget: Budget, order: Sequence[int]) -> "Problem":
        operators = [graph.operators[i] for i in order]
        return cls(
            graph,
            budget,
            tuple(order),
            [budget.aligned(operator.weight_bytes) for operator in operators],
            [operator.transfer_ns for operator in operators],
            prefix_sums(graph, order),
            room_for_weights(graph, budget, tuple(order)).size,
        )


class Marks(NamedTuple):
    """What becomes of each operator, by place, with so many slots."""

    marks: list[int]
    n_slots: int


def cost(problem: Problem, state: Marks) -> Cost | None:
    """None where the state does not fit into the room."""
    first, last, loads, ns = [], [], [], []
    resident = 0
    for place, mark in enumerate(state.marks):
        size = problem.sizes[place]
        if mark == STAYS:
            resident += size
            continue
        if mark == HEAD or not first:
            first.append(place)
            last.append(place)
            loads.append(0)
            ns.append(problem.graph.map_ns)
        last[-1] = place
        loads[-1] += size
        ns[-1] += problem.transfer_ns[place]
    slot_bytes, n_slots = max(loads, default=0), state.n_slots
    too_large = slot_bytes > problem.budget.max_buffer_bytes
    if too_large or resident + n_slots * slot_bytes > problem.room or len(first) <= n_slots:
        return None
    after = [last[j - n_slots] for j in range(len(first))]
    lag = [int(j < n_slots) for j in range(len(first))]
    return steady_stall(problem.computed, Waits(first, ns, after, lag)), sum(ns)


def to_plan(problem: Problem, state: Marks) -> Plan | None:
    """None where it takes more mappings than the budget has."""
    groups: list[list[int]] = []
    for index, mark in zip(problem.order, state.marks, strict=True):
        if mark == HEAD or (mark == JOINS and not groups):
            groups.append([index])
        elif mark == JOINS:
            groups[-1].append(index)
    return in_slots(problem.graph, problem.budget, problem.order, groups, state.n_slots)


def paced_states(problem: Problem) -> Iterator[Marks]:
    """States for one and two slots of several sizes."""
    sizes = sorted({size for size in problem.sizes if size})
    for n_slots in (2, 1):
        limit = min(problem.room // n_slots, problem.budget.max_buffer_bytes)
        for slot_bytes in sorted({*sizes, *_ladder(sizes[-1], limit)}):
            if slot_bytes <= limit:
                marks = _paced(problem, slot_bytes, n_slots)
                if marks is not None:
                    yield Marks(marks, n_slots)


def _ladder(largest: int, limit: int) -> Iterator[int]:
    """Sizes that hold one and a half, two, three, four, six... of the largest operators."""
    size = largest
    while size <= limit:
        yield size
        yield size + size // 2
        size *= 2


def _paced(problem: Problem, slot_bytes: int, n_slots: int) -> list[int] | None:
    """Marks that stage what has to be staged with slots of this size; None where that is too
    much."""
    sizes = problem.sizes
    eligible = [0 < size <= slot_bytes for size in sizes]
    needed = sum(sizes) - (problem.room - n_slots * slot_bytes)
    if needed > sum(size for size, ok in zip(sizes, eligible, strict=True) if ok):
        return None
    marks, staged, load = [STAYS] * len(sizes), 0, 0
    total = max(1, problem.computed[-1])
    for place, size in enumerate(sizes):
        if not size:
            continue
        if not eligible[place]:
            load = 0
        elif load and load + size <= slot_bytes and staged < needed:
            marks[place], load, staged = JOINS, load + size, staged + size
        else:
            middle = problem.computed[place] + problem.computed[place + 1]
            behind = needed * middle // (2 * total) - staged
            due = 2 * behind >= min(slot_bytes, needed - staged) > 0
            marks[place], load = (HEAD, size) if due else (STAYS, 0)
            staged += load
    return _completed(sizes, eligible, marks, needed - staged)


def _completed(sizes: list[int], eligible: list[bool], marks: list[int], missing: int) -> list[int]:
    """Stage some more, from the last operator on, until nothing is missing."""
    for place in reversed(range(len(marks))):
        if missing <= 0:
            break
        if eligible[place] and marks[place] == STAYS:
            marks[place] = HEAD
            missing -= sizes[place]
    return marks


def improved(
    problem: Problem, state: Marks, at: Cost, evaluations: int, rng: Random
) -> tuple[Marks, Cost]:
    """A state that no tried exchange makes better, and its cost."""
    tries, patience = 0, 4 * len(state.marks)
    for _ in range(evaluations):
        if tries == patience or at[0] == 0:
            break
        tried = _disturbed(problem, state, rng)
        found = cost(problem, tried)
        tries += 1
        if found is not None and found < at:
            state, at, tries = tried, found, 0
    return state, at


def _disturbed(problem: Problem, state: Marks, rng: Random) -> Marks:
    """A staged operator changes places with one that stays, or a mark changes."""
    marks, n = list(state.marks), len(state.marks)
    one = rng.randrange(n)
    if rng.random() < 0.5:
        reach = rng.choice((2, 8, n))
        other = min(n - 1, max(0, one + rng.randint(-reach, reach)))
        marks[one], marks[other] = marks[other], marks[one]
    elif problem.sizes[one]:
        marks[one] = rng.choice([mark for mark in (STAYS, JOINS, HEAD) if mark != marks[one]])
    for place in (p for p, size in enumerate(problem.sizes) if not size):
        marks[place] = STAYS
    return Marks(marks, state.n_slots)
