"""The optimal plan of a small graph by constraint programming, as a reference for planners.

Every staged operator is staged in every step. The program chooses which operators are staged, in
which transfers, at which addresses, and optionally in which order. Addresses may differ between
several steps before they repeat, as they do with slots. Offsets are multiples of the alignment. The
period is rounded up to whole nanoseconds.
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
    """The best plan, for all the steps after which its addresses repeat."""

    graph: Graph
    """These steps as one. The weights of residents belong to the first step."""
    plan: Plan
    """The plan of `graph`, in a form that the checker and the exact stall accept."""
    step_ns: Fraction
    """Period of one step."""
    is_proven: bool
    """Whether the solver proved that no plan has a shorter period."""


def exact(
    graph: Graph,
    budget: Budget,
    *,
    reorder: bool = False,
    steps: int = 1,
    effort: float = 60.0,
) -> Optimum:
    """Returns the plan with the shortest period.

    Args:
      reorder: whether operators may run in any order that their dependencies allow.
      steps: number of steps after which addresses repeat.
      effort: limit of the search in OR-tools' deterministic time, about seconds of an idle core.

    Raises:
      PlanError: the search found no plan.
      ValueError: the weights need more than one buffer.
    """
    room, buffers = room_for_weights(graph, budget)
    require(
        min(room, graph.weight_bytes) <= budget.max_buffer_bytes and buffers > 0,
        f"max_buffer_bytes is {budget.max_buffer_bytes}; allowed: all weights in one buffer",
    )
    return _Program(graph, budget, room, reorder, steps).solve(effort)


class _Program:
    """The constraint program. Index p is a position in a step, t a position in all steps."""

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
        """Adds which operator runs at which position, and whether it is staged or resident."""
        positions = range(self.n)
        self.staged_at: list[dict[int, Any]] = [{} for _ in positions]
        self.resident_at: list[dict[int, Any]] = [{} for _ in positions]
        for p in positions:
            for i in positions if reorder else [p]:
                self.resident_at[p][i] = self._bool(f"resident{p}_{i}")
                if self.sizes[i]:
                    self.staged_at[p][i] = self._bool(f"staged{p}_{i}")
            self.model.add_exactly_one([*self.resident_at[p].values(), *self.staged_at[p].values()])
        if reorder:
            at = [
                {p: self.resident_at[p][i] + self.staged_at[p].get(i, 0) for p in positions}
                for i in positions
            ]
            for of_operator in at:
                self.model.add(sum(of_operator.values()) == 1)
            position = [sum(p * is_at for p, is_at in of_operator.items()) for of_operator in at]
            for i, operator in enumerate(self.graph.operators):
                for other in operator.depends:
                    self.model.add(position[other] < position[i])

    def _at(self, t: int, values: list[int], *, staged: bool = False) -> Any:
        """Returns the value of the operator at t. With `staged`, it is 0 for a resident."""
        terms = list(self.staged_at[t % self.n].items())
        terms += [] if staged else list(self.resident_at[t % self.n].items())
        return sum(values[i] * is_at for i, is_at in terms)

    def _run(self) -> None:
        compute = [operator.compute_ns for operator in self.graph.operators]
        self.start = self._times("start", 0)
        self.end = [self.start[t] + self._at(t, compute) for t in range(self.all)]
        self.model.add(self.start[0] == 0)
        for t in range(1, self.all):
            self.model.add(self.start[t] >= self.end[t - 1])
        self.model.add(self.end[-1] <= self.period)

    def _stage(self) -> None:
        """Adds the transfers. An operator is a piece, the first piece of a transfer its head."""
        model = self.model
        self.is_staged = [self._bool(f"is_staged{p}") for p in range(self.n)] * self.steps
        self.head = [self._bool(f"head{t}") for t in range(self.all)]
        self.transfer_start = self._times("transfer_start", -self.longest)
        """Lower bound of the start of the transfer that t is part of."""
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
            duration = self._at(t, transfer_ns, staged=True) + self.graph.map_ns * self.head[t]
            model.add(lane[t] >= piece[t] + duration).only_enforce_if(staged)
            model.add(ready[t] >= piece[t] + duration).only_enforce_if(staged)
            model.add(self.start[t] >= ready[t]).only_enforce_if(staged)
            model.add(self.transfer_start[t] <= piece[t]).only_enforce_if(self.head[t])
            if t:
                model.add(piece[t] >= lane[t - 1]).only_enforce_if(staged)
                model.add(lane[t] >= lane[t - 1])
                not_head = self.head[t].negated()
                model.add(ready[t - 1] >= ready[t]).only_enforce_if(not_head)
                model.add(self.transfer_start[t] <= self.transfer_start[t - 1]).only_enforce_if(
                    not_head
                )
            # The first transfer of the next round waits for the last one of this round.
            model.add(piece[t] + self.period >= lane[-1]).only_enforce_if(staged)

    def _place(self) -> None:
        """Adds the addresses. Two weights do not overlap, or both are staged and take turns. A
        resident has one address."""
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
                    resident = self.is_staged[u].negated()
                    model.add(self.offset[t] == self.offset[u]).only_enforce_if(resident)
                    one_of.append(resident)
                model.add_bool_or(one_of)
        for t in range(self.all):
            model.add_bool_or(sharers[t]).only_enforce_if(self.is_staged[t])

    def _takes_turns(self, t: int, u: int, share: Any) -> None:
        """Adds that the transfer of u starts after t has run: in this round if t is before u, or
        else in the round before."""
        shift = self.period if u <= t else 0
        self.model.add(self.transfer_start[u] + shift >= self.end[t]).only_enforce_if(share)

    def solve(self, effort: float) -> Optimum:
        solver = cp_model.CpSolver()
        solver.parameters.max_deterministic_time = effort
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        status = solver.solve(self.model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            raise PlanError(f"no plan was found with an effort of {effort}")
        order = [
            next(i for i, is_at in [*resident.items(), *staged.items()] if solver.value(is_at))
            for resident, staged in zip(self.resident_at, self.staged_at, strict=True)
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
        unrolled_order = [step * n + i for step in range(self.steps) for i in order]
        groups: list[list[int]] = []
        for t, index in enumerate(unrolled_order):
            if staged[t] and heads[t]:
                groups.append([index])
            elif staged[t]:
                groups[-1].append(index)
        address = {i: unit * offset for i, offset in zip(unrolled_order, offsets, strict=True)}
        area = max(
            unit * (offset + self.sizes[i % n])
            for i, offset in zip(unrolled_order, offsets, strict=True)
        )
        transfers = [Transfer(tuple(group), None) for group in groups]
        return graph, assemble(
            graph, self.budget, unrolled_order, address, [area], displaced=transfers
        )


def unrolled(graph: Graph, steps: int, residents: set[int]) -> Graph:
    """Returns the graph of several steps. Residents have weights in the first step only."""
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
