"""Searches plans in which transfers take turns in slots, and all other weights stay mapped.

Slots hold little, so a transfer can start only shortly before its operators run: what is staged
hides behind the compute of its own neighbourhood. So the search starts from transfers that are
spread over the step as the compute is: many small ones where bytes cost time, few large ones where
mappings do. Exchanges of neighbours then repair what the rule leaves.
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
LARGEST_OPERATORS = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Sizes of slots that are tried, in largest operators."""
TRANSFERS = (*range(1, 8), *range(8, 33, 2))
"""Numbers of transfers whose slots are tried."""

Cost = tuple[Fraction, int]
"""Stall of a step, and time of its transfers, ns; smaller is better."""


class SlotMarks(NamedTuple):
    """What becomes of each operator, by place in the order, with so many slots."""

    marks: list[int]
    n_slots: int


class SlotSearch:
    """Plans of a graph in one order."""

    def __init__(self, graph: Graph, budget: Budget, order: Sequence[int]):
        self._graph, self._budget, self._order = graph, budget, tuple(order)
        sizes = budget.sizes(graph)
        self._sizes = [sizes[i] for i in order]
        self._transfer_ns = [graph.operators[i].transfer_ns for i in order]
        self._computed = prefix_sums(graph, order)
        self._room = room_for_weights(graph, budget, self._order).size
        self._weighted = [place for place, size in enumerate(self._sizes) if size]

    def cost(self, state: SlotMarks) -> Cost | None:
        """Returns what a state costs, or None where it does not fit into the room."""
        groups, n_slots = _groups(state.marks), state.n_slots
        loads = [sum(self._sizes[place] for place in group) for group in groups]
        slot_bytes, resident = max(loads, default=0), sum(self._sizes) - sum(loads)
        too_large = slot_bytes > self._budget.max_buffer_bytes
        if too_large or resident + n_slots * slot_bytes > self._room or len(groups) <= n_slots:
            return None
        ns = [
            self._graph.map_ns + sum(self._transfer_ns[place] for place in group)
            for group in groups
        ]
        after = [groups[j - n_slots][-1] for j in range(len(groups))]
        lag = [int(j < n_slots) for j in range(len(groups))]
        waits = Waits([group[0] for group in groups], ns, after, lag)
        return steady_stall(self._computed, waits), sum(ns)

    def plan(self, state: SlotMarks) -> Plan | None:
        """Returns the plan of a state, or None where it takes more mappings than the budget has."""
        groups = [[self._order[place] for place in group] for group in _groups(state.marks)]
        return in_slots(self._graph, self._budget, self._order, groups, state.n_slots)

    def starts(self, count: int) -> list[tuple[Cost, SlotMarks]]:
        """Returns the best spread states of one and two slots of several sizes."""
        found = [(self.cost(state), state) for state in self._spread_states()]
        fitting = [(at, state) for at, state in found if at is not None]
        return sorted(fitting, key=lambda each: each[0])[:count]

    def _spread_states(self) -> Iterator[SlotMarks]:
        for n_slots in (2, 1):
            for slot_bytes in self._slot_sizes(n_slots):
                staged = self._spread(slot_bytes, n_slots)
                for across in (False, True) if staged else ():
                    yield SlotMarks(self._grouped(staged, slot_bytes, across), n_slots)

    def _slot_sizes(self, n_slots: int) -> list[int]:
        """Returns sizes that hold some operators, or with which so many transfers are enough.

        With n slots of S bytes, W - M + n S bytes are staged in a room of M; t transfers of which
        each leaves u bytes of its slot empty stage t (S - u).
        """
        limit = min(self._room // n_slots, self._budget.max_buffer_bytes)
        excess, largest = sum(self._sizes) - self._room, max(self._sizes)
        found = {self._sizes[place] for place in self._weighted}
        found.update(int(factor * largest) for factor in LARGEST_OPERATORS)
        for empty in (0, largest // 2, largest):
            found.update(-(-(excess + (n_slots + t) * empty) // t) for t in TRANSFERS)
        return sorted(size for size in found if size <= limit)

    def _spread(self, slot_bytes: int, n_slots: int) -> list[bool]:
        """Returns which operators to stage, in runs that lie where the compute does.

        The list is empty where slots of this size cannot stage enough.
        """
        sizes = self._sizes
        eligible = [0 < size <= slot_bytes for size in sizes]
        needed = sum(sizes) - (self._room - n_slots * slot_bytes)
        if needed > sum(size for size, ok in zip(sizes, eligible, strict=True) if ok):
            return []
        staged, missing, load = [False] * len(sizes), needed, 0
        total = max(1, self._computed[-1])
        for place in self._weighted:
            size = sizes[place]
            if not (eligible[place] and load and load + size <= slot_bytes and missing > 0):
                middle = self._computed[place] + self._computed[place + 1]
                behind = needed * middle // (2 * total) - (needed - missing)
                load = 0
                if not (eligible[place] and 2 * behind >= min(slot_bytes, missing) > 0):
                    continue
            staged[place], load, missing = True, load + size, missing - size
        for place in reversed(self._weighted):
            if missing > 0 and eligible[place] and not staged[place]:
                staged[place], missing = True, missing - sizes[place]
        return staged

    def _grouped(self, staged: Sequence[bool], slot_bytes: int, across: bool) -> list[int]:
        """Returns marks of transfers as large as a slot; `across` residents, or of neighbours."""
        marks, load = [STAYS] * len(staged), 0
        for place in self._weighted:
            size = self._sizes[place]
            if staged[place]:
                joins = 0 < load <= slot_bytes - size
                marks[place], load = (JOINS, load + size) if joins else (HEAD, size)
            elif not across:
                load = 0
        return marks

    def improve(
        self, state: SlotMarks, at: Cost, goal: Fraction, evaluations: int, rng: Random
    ) -> SlotMarks:
        """Returns a state that none of so many exchanges makes better, or whose stall is `goal`."""
        for _ in range(evaluations):
            if at[0] <= goal:
                break
            tried = self._disturbed(state, rng)
            found = self.cost(tried)
            if found is not None and found < at:
                state, at = tried, found
        return state

    def _disturbed(self, state: SlotMarks, rng: Random) -> SlotMarks:
        """Returns the state with two marks exchanged, or with one mark changed."""
        marks, n = list(state.marks), len(self._weighted)
        number = rng.randrange(n)
        one = self._weighted[number]
        if rng.random() < 0.5:
            reach = rng.choice((2, 8, n))
            other = self._weighted[min(n - 1, max(0, number + rng.randint(-reach, reach)))]
            marks[one], marks[other] = marks[other], marks[one]
        else:
            marks[one] = rng.choice([mark for mark in (STAYS, JOINS, HEAD) if mark != marks[one]])
        return SlotMarks(marks, state.n_slots)


def _groups(marks: Sequence[int]) -> list[list[int]]:
    """Returns the places of each transfer's operators."""
    groups: list[list[int]] = []
    for place, mark in enumerate(marks):
        if mark == HEAD or (mark == JOINS and not groups):
            groups.append([place])
        elif mark == JOINS:
            groups[-1].append(place)
    return groups
