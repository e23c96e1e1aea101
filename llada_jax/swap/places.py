"""Plans in which every operator's weights have one place, and those that overlap take turns.

Any choice of places is a plan: whose bytes nobody else uses stays mapped, the others are staged in
every step. So a search may move weights about freely, change the order as far as dependencies
allow, and let an operator share the transfer of the one before. For graphs of some dozen operators.
"""

from collections.abc import Sequence
from fractions import Fraction
from random import Random
from typing import NamedTuple

from llada_jax.swap.address_budget import Budget
from llada_jax.swap.address_layout import assemble, room_for_weights
from llada_jax.swap.address_plan import Plan, Transfer
from llada_jax.swap.graph import Graph
from llada_jax.swap.stall_times import Waits, last_users, prefix_sums, steady_stall

Cost = tuple[Fraction, int]
"""Stall of a step, and time of its transfers, ns; smaller is better."""


class Placing(NamedTuple):
    """By operator: where its weights lie, and whether they join the transfer before."""

    order: tuple[int, ...]
    offsets: tuple[int, ...]
    joins: tuple[bool, ...]


class PlaceSearch:
    """Searches placings of a graph, all in one buffer."""

    def __init__(self, graph: Graph, budget: Budget, seed: int = 0):
        self._graph, self._budget = graph, budget
        self._sizes = [budget.aligned(operator.weight_bytes) for operator in graph.operators]
        self._has_temporaries = any(op.temporary_bytes for op in graph.operators)
        room = room_for_weights(graph, budget, range(len(graph)))
        buffer_bytes = budget.max_buffer_bytes // budget.alignment * budget.alignment
        self._room = min(room.size, buffer_bytes)
        self._random = Random(seed)

    def start_from(self, plan: Plan) -> Placing | None:
        """The placing of a plan; None where it needs more than one buffer's bytes."""
        base = plan.arena.end
        first = {t.operators[0] for t in plan.transfers}
        offsets = [region.start - base for region in plan.weights]
        if any(at + size > self._room for at, size in zip(offsets, self._sizes, strict=True)):
            return None
        joins = tuple(i in plan.staged and i not in first for i in range(len(self._graph)))
        return Placing(plan.order, tuple(offsets), joins)

    def cost(self, state: Placing) -> Cost | None:
        """None where an operator would wait for one that comes after it."""
        groups = self._groups(state)
        if groups is None:
            return None
        n = len(self._graph)
        users = [user for *_, user in groups]
        ns = [self._graph.transfer_ns(operators) for _, operators, _ in groups]
        waits = Waits(
            [place for place, *_ in groups],
            ns,
            [user % n for user in users],
            [int(user < 0) for user in users],
        )
        return steady_stall(prefix_sums(self._graph, state.order), waits), sum(ns)

    def _groups(self, state: Placing) -> list[tuple[int, list[int], int]] | None:
        """Of each transfer: the place of its first operator, its operators, and the place of the
        operator that frees theirs."""
        n = len(self._graph)
        used = {
            place: (state.offsets[i], self._sizes[i])
            for place, i in enumerate(state.order)
            if self._sizes[i]
        }
        latest = last_users(used, n)
        groups: list[tuple[int, list[int], int]] = []
        for place in used:
            if latest[place] == place - n:
                continue
            index = state.order[place]
            if state.joins[index] and groups:
                first, operators, user = groups[-1]
                groups[-1] = first, [*operators, index], max(user, latest[place])
            else:
                groups.append((place, [index], latest[place]))
        return None if any(user >= first for first, _, user in groups) else groups

    def improve(self, state: Placing, evaluations: int, goal: Fraction) -> tuple[Placing, Cost]:
        """The best placing that a random walk finds: it never goes up, and starts again from the
        best one, three moves away, when it is stuck. Ends early where the stall reaches `goal`."""
        at = self.cost(state)
        assert at is not None
        best, stuck = (at, state), 0
        for _ in range(evaluations):
            if best[0][0] <= goal:
                break
            tried = self._moved(state)
            found = self.cost(tried)
            stuck += 1
            if found is not None and found <= at:
                stuck = 0 if found < at else stuck
                state, at = tried, found
                best = min(best, (at, state), key=lambda each: each[0])
            if stuck > 12 * len(self._graph):
                state, at = self._kicked(best[1])
                stuck = 0
        return best[1], best[0]

    def _kicked(self, state: Placing) -> tuple[Placing, Cost]:
        while True:
            kicked = self._moved(self._moved(self._moved(state)))
            cost = self.cost(kicked)
            if cost is not None:
                return kicked, cost

    def _moved(self, state: Placing) -> Placing:
        choice = self._random.random()
        if choice < 0.5:
            return state._replace(offsets=self._elsewhere(state))
        if choice < 0.7:
            return state._replace(offsets=self._exchanged(state))
        if choice < 0.85:
            return state._replace(order=self._reordered(state.order))
        index = self._random.randrange(len(state.joins))
        joins = list(state.joins)
        joins[index] = not joins[index]
        return state._replace(joins=tuple(joins))

    def _elsewhere(self, state: Placing) -> tuple[int, ...]:
        """One operator's weights beside or upon those of another one, or at an end."""
        index, other = (self._random.randrange(len(state.offsets)) for _ in range(2))
        at, size, offsets = state.offsets[other], self._sizes[other], list(state.offsets)
        mine = self._sizes[index]
        wanted = (at, at + size, at - mine, at + size - mine, 0, self._room - mine)
        offsets[index] = self._random.choice([o for o in wanted if 0 <= o <= self._room - mine])
        return tuple(offsets)

    def _exchanged(self, state: Placing) -> tuple[int, ...]:
        one, other = (self._random.randrange(len(state.offsets)) for _ in range(2))
        offsets = list(state.offsets)
        for mine, theirs in ((one, other), (other, one)):
            offsets[mine] = min(state.offsets[theirs], self._room - self._sizes[mine])
        return tuple(offsets)

    def _reordered(self, order: tuple[int, ...]) -> tuple[int, ...]:
        """One operator at another place; the same order where dependencies or room forbid it."""
        changed = list(order)
        index = changed.pop(self._random.randrange(len(order)))
        changed.insert(self._random.randrange(len(order)), index)
        if not self._graph.is_order(changed):
            return order
        if self._has_temporaries and not self._has_room(changed):
            return order
        return tuple(changed)

    def _has_room(self, order: Sequence[int]) -> bool:
        try:
            return room_for_weights(self._graph, self._budget, tuple(order)).size >= self._room
        except ValueError:
            return False

    def to_plan(self, state: Placing) -> Plan:
        """The plan of a placing."""
        room = room_for_weights(self._graph, self._budget, state.order)
        groups = self._groups(state) or []
        transfers = [Transfer(tuple(operators), None) for _, operators, _ in groups]
        area = max(at + size for at, size in zip(state.offsets, self._sizes, strict=True))
        address = {i: room.start + at for i, at in enumerate(state.offsets)}
        return assemble(self._graph, room, state.order, transfers, address, [area], [])
