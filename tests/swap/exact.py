"""The best plan of a small graph, by constraint programming: what planners are measured with.

Every staged operator is staged in every step. Who shares addresses, where, in what order and in
which transfer is free, and the addresses may alternate between so many steps: slots that take turns
are one case of that. Offsets are multiples of the alignment. A period is a whole number here; the
plan's own may be less than a nanosecond shorter.
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

from ortools.sat.python import cp_model  # pyright: ignore[reportMissingImports]

from llada_jax.config import require
from llada_jax.swap.address_space import (
    Budget,
    Plan,
    PlanError,
    Transfer,
    assemble,
    room_for_weights,
)
from llada_jax.swap.graph import Graph
from llada_jax.swap.stall_times import least_step_ns


class Optimum(NamedTuple):
    """The best plan that was found, of the steps over which its addresses alternate."""

    graph: Graph
    """Those steps as one; the weights of residents belong to the first of them."""
    plan: Plan
    """Of `graph`, so that the project's checker and its clock apply."""
    step_ns: Fraction
    """Period of one step."""
    is_proven: bool
    """Whether no plan of this kind has a shorter one."""


def exact(
    graph: Graph,
    budget: Budget,
    *,
    reorder: bool = False,
    steps: int = 1,
    effort: float = 60.0,
) -> Optimum:
    """Searches all plans whose addresses repeat after some steps.

    Args:
      reorder: whether operators may run in any order that their dependencies allow.
      steps: after which addresses repeat.
      effort: limit of the search, in OR-tools' deterministic time: about as many seconds of an idle
        core.

    Raises:
      PlanError: no plan was found.
      ValueError: weights that need more than one buffer.
    """
    room, buffers = room_for_weights(graph, budget)
    require(
        min(room, graph.weight_bytes) <= budget.max_buffer_bytes and buffers > 0,
        f"max_buffer_bytes is {budget.max_buffer_bytes}; allowed: all weights in one buffer",
    )
    return _Program(graph, budget, room, reorder, steps).solve(effort)


class _Program:
    """Variables by place in the order, through all steps."""

    def __init__(self, graph: Graph, budget: Budget, room: int, reorder: bool, steps: int):
        self.graph, self.budget, self.steps = graph, budget, steps
        self.model = cp_model.CpModel()
        self.n, self.all = len(graph), steps * len(graph)
        self.sizes = [budget.aligned(op.weight_bytes) // budget.alignment for op in graph.operators]
        self.room = room // budget.alignment
        self.longest = steps * (
            graph.compute_ns + sum(graph.transfer_ns([i]) for i in range(self.n))
        )
        floor = steps * least_step_ns(graph, budget)
        self.period = self.model.new_int_var(floor, self.longest, "period")
        self._assign(reorder)
        self._run()
        self._stage()
        self._place()
        self.model.minimize(self.period)

    def _bool(self, name: str) -> Any:
        return self.model.new_bool_var(name)

    def _times(self, name: str, least: int) -> list[Any]:
        return [self.model.new_int_var(least, self.longest, f"{name}{t}") for t in range(self.all)]

    def _assign(self, reorder: bool) -> None:
        """Which operator runs at which place of a step, and whether it is staged there."""
        here = range(self.n)
        self.staged_at: list[dict[int, Any]] = [{} for _ in here]
        self.stays_at: list[dict[int, Any]] = [{} for _ in here]
        for p in here:
            for i in here if reorder else [p]:
                self.stays_at[p][i] = self._bool(f"stays{p}_{i}")
                if self.sizes[i]:
                    self.staged_at[p][i] = self._bool(f"staged{p}_{i}")
            self.model.add_exactly_one([*self.stays_at[p].values(), *self.staged_at[p].values()])
        if reorder:
            at = [
                {p: self.stays_at[p][i] + self.staged_at[p].get(i, 0) for p in here} for i in here
            ]
            for here_or_there in at:
                self.model.add(sum(here_or_there.values()) == 1)
            place = [sum(p * is_here for p, is_here in each.items()) for each in at]
            for i, operator in enumerate(self.graph.operators):
                for other in operator.depends:
                    self.model.add(place[other] < place[i])

    def _at(self, t: int, values: list[int], *, staged: bool = False) -> Any:
        """The value of the operator at a place; with `staged`, 0 where it is not staged."""
        terms = list(self.staged_at[t % self.n].items())
        terms += [] if staged else list(self.stays_at[t % self.n].items())
        return sum(values[i] * is_here for i, is_here in terms)

    def _run(self) -> None:
        compute = [operator.compute_ns for operator in self.graph.operators]
        self.start = self._times("start", 0)
        self.end = [self.start[t] + self._at(t, compute) for t in range(self.all)]
        self.model.add(self.start[0] == 0)
        for t in range(1, self.all):
            self.model.add(self.start[t] >= self.end[t - 1])
        self.model.add(self.end[-1] <= self.period)

    def _stage(self) -> None:
        """Pieces of transfers in order of use. A head begins a transfer, others join it."""
        model = self.model
        self.is_staged = [self._bool(f"is_staged{p}") for p in range(self.n)] * self.steps
        self.head = [self._bool(f"head{t}") for t in range(self.all)]
        self.begun = self._times("begun", -self.longest)
        """When the transfer that t is part of starts, or earlier."""
        ready, lane, piece = (
            self._times(name, -self.longest) for name in ("ready", "lane", "piece")
        )
        transfer_ns = [operator.transfer_ns for operator in self.graph.operators]
        for t in range(self.all):
            staged = self.is_staged[t]
            if t < self.n:
                model.add(staged == sum(self.staged_at[t].values()))
            model.add_implication(self.head[t], staged)
            model.add_bool_or(self.head[:t]).only_enforce_if([staged, self.head[t].negated()])
            took = self._at(t, transfer_ns, staged=True) + self.graph.map_ns * self.head[t]
            model.add(lane[t] >= piece[t] + took).only_enforce_if(staged)
            model.add(ready[t] >= piece[t] + took).only_enforce_if(staged)
            model.add(self.start[t] >= ready[t]).only_enforce_if(staged)
            model.add(self.begun[t] <= piece[t]).only_enforce_if(self.head[t])
            if t:
                model.add(piece[t] >= lane[t - 1]).only_enforce_if(staged)
                model.add(lane[t] >= lane[t - 1])
                not_head = self.head[t].negated()
                model.add(ready[t - 1] >= ready[t]).only_enforce_if(not_head)
                model.add(self.begun[t] <= self.begun[t - 1]).only_enforce_if(not_head)
            # What is staged first in the next round waits for the last transfer of this one.
            model.add(piece[t] + self.period >= lane[-1]).only_enforce_if(staged)

    def _place(self) -> None:
        """Any two lie apart, or are staged and take turns; one that stays has one place."""
        model = self.model
        self.offset = [model.new_int_var(0, self.room, f"offset{t}") for t in range(self.all)]
        sizes = [self._at(t, self.sizes) for t in range(self.all)]
        sharers: list[list[Any]] = [[] for _ in range(self.all)]
        for u in range(self.all):
            model.add(self.offset[u] + sizes[u] <= self.room)
            for t in range(u):
                below, above, share = (
                    self._bool(f"{k}{t}_{u}") for k in ("below", "above", "share")
                )
                model.add(self.offset[t] + sizes[t] <= self.offset[u]).only_enforce_if(below)
                model.add(self.offset[u] + sizes[u] <= self.offset[t]).only_enforce_if(above)
                model.add_implication(share, self.is_staged[t])
                model.add_implication(share, self.is_staged[u])
                self._takes_turns(t, u, share)
                self._takes_turns(u, t, share)
                sharers[t].append(share)
                sharers[u].append(share)
                one_of = [below, above, share]
                if (u - t) % self.n == 0:
                    stays = self.is_staged[u].negated()
                    model.add(self.offset[t] == self.offset[u]).only_enforce_if(stays)
                    one_of.append(stays)
                model.add_bool_or(one_of)
        for t in range(self.all):
            model.add_bool_or(sharers[t]).only_enforce_if(self.is_staged[t])

    def _takes_turns(self, t: int, u: int, share: Any) -> None:
        """The transfer of u starts once t has run: in this round if t comes before u, else in the
        round before."""
        shift = self.period if u <= t else 0
        self.model.add(self.begun[u] + shift >= self.end[t]).only_enforce_if(share)

    def solve(self, effort: float) -> Optimum:
        solver = cp_model.CpSolver()
        solver.parameters.max_deterministic_time = effort
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        status = solver.solve(self.model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            raise PlanError(f"no plan was found with an effort of {effort}")
        order = [
            next(i for i, here in [*stays.items(), *staged.items()] if solver.value(here))
            for stays, staged in zip(self.stays_at, self.staged_at, strict=True)
        ]
        staged = [solver.boolean_value(is_staged) for is_staged in self.is_staged]
        heads = [solver.boolean_value(head) for head in self.head]
        offsets = [solver.value(offset) for offset in self.offset]
        step_ns = Fraction(int(solver.objective_value), self.steps)
        plan = self._plan(order, staged, heads, offsets)
        return Optimum(*plan, step_ns, status == cp_model.OPTIMAL)

    def _plan(
        self, order: list[int], staged: list[bool], heads: list[bool], offsets: list[int]
    ) -> tuple[Graph, Plan]:
        n, unit = self.n, self.budget.alignment
        residents = {i for i, is_staged in zip(order, staged, strict=False) if not is_staged}
        graph = unrolled(self.graph, self.steps, residents)
        everything = [step * n + i for step in range(self.steps) for i in order]
        groups: list[list[int]] = []
        for t, index in enumerate(everything):
            if staged[t] and heads[t]:
                groups.append([index])
            elif staged[t]:
                groups[-1].append(index)
        address = {i: unit * at for i, at in zip(everything, offsets, strict=True)}
        area = max(
            unit * (at + self.sizes[i % n]) for i, at in zip(everything, offsets, strict=True)
        )
        transfers = [Transfer(tuple(group), None) for group in groups]
        return graph, assemble(graph, self.budget, everything, address, [area], displaced=transfers)


def unrolled(graph: Graph, steps: int, residents: set[int]) -> Graph:
    """So many steps as one: the operators again and again, residents with weights once."""
    n = len(graph)
    return Graph(
        tuple(
            replace(
                operator,
                name=f"{operator.name} of step {step}",
                weight_bytes=0 if step and index in residents else operator.weight_bytes,
                depends=tuple(step * n + other for other in operator.depends),
            )
            for step in range(steps)
            for index, operator in enumerate(graph.operators)
        ),
        graph.map_ns,
    )
