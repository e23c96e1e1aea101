"""The best plan of a small graph, by constraint programming: what other planners are measured with.

The model knows two kinds of plans. In the first every operator's weights have one place, and two
operators may share addresses if they take turns, each transfer waiting for those whose place it
takes: who shares, where and in what order is all free. In the second some operators stay for good
and the others pass through two equal slots that change roles from step to step. In both, a transfer
may bring several operators that are staged one after the other.

A period is a whole number here; the plan's own may be less than a nanosecond shorter.
"""

from typing import Any, NamedTuple

from llada_jax.config import require
from llada_jax.swap.address_budget import Budget, PlanError
from llada_jax.swap.address_layout import assemble, in_slots, room_for_weights
from llada_jax.swap.address_plan import Plan, Transfer
from llada_jax.swap.bound import least_step_ns
from llada_jax.swap.graph import Graph


class Optimum(NamedTuple):
    """The best plan that was found."""

    plan: Plan
    step_ns: int
    """Its period."""
    bound_ns: int
    """No plan of the two kinds has a shorter one; equal to `step_ns` where that is proven."""


def exact(
    graph: Graph, budget: Budget, *, reorder: bool = False, effort: float = 60.0, workers: int = 1
) -> Optimum:
    """Search all plans of the two kinds.

    Args:
      reorder: whether operators may run in any order that their dependencies allow. Temporaries
        then have to be empty, since the room they take depends on the order.
      effort: limit of the search for each kind, in OR-tools' deterministic time: about as many
        seconds of an idle core.
      workers: threads.

    Raises:
      PlanError: no plan was found.
      ValueError: temporaries with `reorder`, or weights that need more than one buffer.
      ImportError: the extra `exact` is not installed.
    """
    temporaries = any(operator.temporary_bytes for operator in graph.operators)
    require(not (reorder and temporaries), "reorder is True; allowed: False, with temporaries")
    room = room_for_weights(graph, budget, range(len(graph)))
    require(
        min(room.size, graph.weight_bytes) <= budget.max_buffer_bytes and room.buffers >= 3,
        f"max_buffer_bytes is {budget.max_buffer_bytes}; allowed: all weights in one of 3 buffers",
    )
    longest = graph.compute_ns + sum(graph.transfer_ns([i]) for i in range(len(graph)))
    floor, best = least_step_ns(graph, budget), None
    bounds = []
    for kind in (_SharedPlaces, _TwoSlots):
        model = kind(graph, budget, room.size, reorder, floor, longest)
        plan, step_ns, bound_ns = model.solve(effort, workers)
        bounds.append(bound_ns)
        if plan is not None and (best is None or step_ns < best[1]):
            best, longest = (plan, step_ns), step_ns
    if best is None:
        raise PlanError(f"no plan was found with an effort of {effort}")
    return Optimum(*best, min(*bounds, best[1]))


class _Model:
    """Variables that both kinds share, by place in the order."""

    def __init__(
        self, graph: Graph, budget: Budget, room: int, reorder: bool, floor: int, longest: int
    ):
        self.cp = _cp_model()
        self.graph, self.budget, self.room = graph, budget, room
        self.model = self.cp.CpModel()
        self.n = n = len(graph)
        self.sizes = [budget.aligned(operator.weight_bytes) for operator in graph.operators]
        self.period = self.model.new_int_var(floor, longest, "period")
        self.longest = longest
        self._assign(reorder)
        self.start = [self._time(f"start{p}", 0) for p in range(n)]
        self.end = [self.start[p] + self._at(p, "compute_ns") for p in range(n)]
        self.model.add(self.start[0] == 0)
        for p in range(1, n):
            self.model.add(self.start[p] >= self.end[p - 1])
        self.model.add(self.end[-1] <= self.period)
        self._stage()
        self.model.minimize(self.period)

    def _bool(self, name: str) -> Any:
        return self.model.new_bool_var(name)

    def _time(self, name: str, least: int) -> Any:
        return self.model.new_int_var(least, self.longest, name)

    def _assign(self, reorder: bool) -> None:
        """Which operator runs at which place, and whether it is staged there."""
        n = self.n
        here = range(n)
        self.staged_at: list[dict[int, Any]] = [{} for _ in here]
        self.stays_at: list[dict[int, Any]] = [{} for _ in here]
        for p in here:
            for i in here if reorder else [p]:
                self.stays_at[p][i] = self._bool(f"stays{p}_{i}")
                if self.sizes[i]:
                    self.staged_at[p][i] = self._bool(f"staged{p}_{i}")
            both = [*self.stays_at[p].values(), *self.staged_at[p].values()]
            self.model.add_exactly_one(both)
        self.staged = [sum(self.staged_at[p].values()) for p in here]
        if reorder:
            place = []
            for i in here:
                at = {p: self.stays_at[p][i] + self.staged_at[p].get(i, 0) for p in here}
                self.model.add(sum(at.values()) == 1)
                place.append(sum(p * is_here for p, is_here in at.items()))
            for i, operator in enumerate(self.graph.operators):
                for other in operator.depends:
                    self.model.add(place[other] < place[i])

    def _at(self, p: int, name: str, *, staged: bool = False) -> Any:
        """An attribute of the operator at a place; with `staged`, 0 where it is not staged."""
        terms = list(self.staged_at[p].items())
        terms += [] if staged else list(self.stays_at[p].items())
        return sum(getattr(self.graph.operators[i], name) * is_here for i, is_here in terms)

    def _size(self, p: int, *, staged: bool = False) -> Any:
        terms = list(self.staged_at[p].items())
        terms += [] if staged else list(self.stays_at[p].items())
        return sum(self.sizes[i] * is_here for i, is_here in terms)

    def _stage(self) -> None:
        """Pieces of transfers in order of use. A head begins a transfer, others join it."""
        n, model = self.n, self.model
        self.is_staged = [self._bool(f"is_staged{p}") for p in range(n)]
        self.head = [self._bool(f"head{p}") for p in range(n)]
        self.begun = [self._time(f"begun{p}", -self.longest) for p in range(n)]
        """When the transfer that p is part of starts, or earlier."""
        ready = [self._time(f"ready{p}", -self.longest) for p in range(n)]
        lane = [self._time(f"lane{p}", -self.longest) for p in range(n)]
        for p in range(n):
            model.add(self.is_staged[p] == self.staged[p])
            model.add_implication(self.head[p], self.is_staged[p])
            joins = [self.is_staged[p], self.head[p].negated()]
            model.add_bool_or(self.head[:p]).only_enforce_if(joins)
            piece = self._time(f"piece{p}", -self.longest)
            took = self._at(p, "transfer_ns", staged=True) + self.graph.map_ns * self.head[p]
            model.add(lane[p] >= piece + took).only_enforce_if(self.is_staged[p])
            model.add(ready[p] >= piece + took).only_enforce_if(self.is_staged[p])
            model.add(self.start[p] >= ready[p]).only_enforce_if(self.is_staged[p])
            model.add(self.begun[p] <= piece).only_enforce_if(self.head[p])
            if p:
                model.add(piece >= lane[p - 1]).only_enforce_if(self.is_staged[p])
                model.add(lane[p] >= lane[p - 1])
                not_head = self.head[p].negated()
                model.add(ready[p - 1] >= ready[p]).only_enforce_if(not_head)
                model.add(self.begun[p] <= self.begun[p - 1]).only_enforce_if(not_head)
            # What is staged first in the next step waits for the last transfer of this one.
            model.add(piece + self.period >= lane[-1]).only_enforce_if(self.is_staged[p])

    def _waits(self, p: int, q: int, conditions: list[Any]) -> None:
        """The transfer of q starts once p has run: in this step if p comes before q, else in the
        step before."""
        shift = self.period if q <= p else 0
        self.model.add(self.begun[q] + shift >= self.end[p]).only_enforce_if(conditions)

    def solve(self, effort: float, workers: int) -> tuple[Plan | None, int, int]:
        """Plan, its period, and the bound of this kind."""
        solver = self.cp.CpSolver()
        solver.parameters.max_deterministic_time = effort
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = 0
        status = solver.solve(self.model)
        if status == self.cp.INFEASIBLE:
            return None, self.longest, self.longest
        bound = -int(-solver.best_objective_bound // 1)
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return None, self.longest, bound
        order, groups = [], []
        for p in range(self.n):
            staged = [i for i, is_here in self.staged_at[p].items() if solver.value(is_here)]
            stays = [i for i, is_here in self.stays_at[p].items() if solver.value(is_here)]
            order += [*staged, *stays]
            if staged and solver.value(self.head[p]):
                groups.append(staged)
            elif staged:
                groups[-1] += staged
        return self._plan(solver, order, groups), int(solver.objective_value), bound

    def _plan(self, solver: Any, order: list[int], groups: list[list[int]]) -> Plan | None:
        raise NotImplementedError


class _SharedPlaces(_Model):
    """Every operator's weights have one place, which they may share."""

    def _stage(self) -> None:
        super()._stage()
        model, n = self.model, self.n
        self.offset = [model.new_int_var(0, self.room, f"offset{p}") for p in range(n)]
        sizes = [self._size(p) for p in range(n)]
        sharers: list[list[Any]] = [[] for _ in range(n)]
        for q in range(n):
            model.add(self.offset[q] + sizes[q] <= self.room)
            for p in range(q):
                below, above, share = (
                    self._bool(f"{k}{p}_{q}") for k in ("below", "above", "share")
                )
                model.add_bool_or(below, above, share)
                sharers[p].append(share)
                sharers[q].append(share)
                model.add(self.offset[p] + sizes[p] <= self.offset[q]).only_enforce_if(below)
                model.add(self.offset[q] + sizes[q] <= self.offset[p]).only_enforce_if(above)
                model.add_implication(share, self.is_staged[p])
                model.add_implication(share, self.is_staged[q])
                self._waits(p, q, [share])
                self._waits(q, p, [share])
        for p in range(n):
            model.add_bool_or(sharers[p]).only_enforce_if(self.is_staged[p])

    def _plan(self, solver: Any, order: list[int], groups: list[list[int]]) -> Plan | None:
        room = room_for_weights(self.graph, self.budget, tuple(order))
        offsets = [solver.value(offset) for offset in self.offset]
        area = max(at + self.sizes[i] for i, at in zip(order, offsets, strict=True))
        address = {i: room.start + at for i, at in zip(order, offsets, strict=True)}
        transfers = [Transfer(tuple(group), None) for group in groups]
        return assemble(self.graph, room, order, transfers, address, [area], [])


class _TwoSlots(_Model):
    """Transfers take turns in two equal slots, all other weights stay."""

    def _stage(self) -> None:
        super()._stage()
        model, n = self.model, self.n
        slot = model.new_int_var(0, self.room, "slot")
        load = [model.new_int_var(0, self.room, f"load{p}") for p in range(n)]
        number = [sum(self.head[: p + 1]) for p in range(n)]
        stays = sum(self._size(p) - self._size(p, staged=True) for p in range(n))
        model.add(stays + 2 * slot <= self.room)
        model.add(number[-1] >= 3)
        in_first, in_last = ([self._bool(f"{k}{p}") for p in range(n)] for k in ("first", "last"))
        for p in range(n):
            model.add(slot >= load[p])
            model.add(load[p] >= self._size(p, staged=True))
            if p:
                joined = load[p] >= load[p - 1] + self._size(p, staged=True)
                model.add(joined).only_enforce_if(self.head[p].negated())
            model.add(number[p] >= 2).only_enforce_if(in_first[p].negated())
            model.add(number[p] <= 1).only_enforce_if(in_first[p])
            model.add(number[p] < number[-1]).only_enforce_if(in_last[p].negated())
            model.add(number[p] >= number[-1]).only_enforce_if(in_last[p])
        for q in range(n):
            for p in range(n):
                both = [self.is_staged[p], self.is_staged[q]]
                if p < q:
                    apart = self._bool(f"apart{p}_{q}")
                    model.add(number[q] - number[p] <= 1).only_enforce_if(apart.negated())
                    self._waits(p, q, [*both, apart])
                    continue
                self._waits(p, q, [*both, in_first[q].negated()])
                self._waits(p, q, [*both, in_last[p].negated()])

    def _plan(self, solver: Any, order: list[int], groups: list[list[int]]) -> Plan | None:
        return in_slots(self.graph, self.budget, order, groups, 2)


def _cp_model() -> Any:
    try:
        from ortools.sat.python import cp_model  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("the exact planner needs OR-tools: install llada_jax[exact]") from error
    return cp_model
