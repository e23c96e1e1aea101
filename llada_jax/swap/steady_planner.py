"""The planner for denoising loops: the least stall of a step in a loop without end, and of plans
that stall equally the one that stages less.

It starts from what is known to be good (the paper's plan, transfers paced over the step), counts
what each leaves to the next step exactly, and searches on from the best. So it is never worse than
the paper's planner with slots of the published size, or of the largest operator's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random

from llada_jax.config import require
from llada_jax.swap.address_budget import Budget, PlanError
from llada_jax.swap.address_layout import in_slots, room_for_weights
from llada_jax.swap.address_plan import Plan, Planner
from llada_jax.swap.bound import least_step_ns
from llada_jax.swap.graph import Graph
from llada_jax.swap.greedy_planner import PUBLISHED_SLOT_BYTES, Greedy
from llada_jax.swap.paging_planner import paging
from llada_jax.swap.places import PlaceSearch
from llada_jax.swap.slot_search import Cost, Problem, cost, improved, paced_states, to_plan
from llada_jax.swap.stall_times import stall_of

SMALL = 48
"""Operators up to which places are searched one by one."""


@dataclass(frozen=True)
class Steady:
    """The planner. `evaluations` are the plans that each search tries, fewer for large graphs."""

    evaluations: int = 3000
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.evaluations >= 0, f"evaluations is {self.evaluations}; allowed: 0 or more")

    def __call__(self, graph: Graph, budget: Budget) -> Plan:
        room_for_weights(graph, budget, range(len(graph)))
        everything = in_slots(graph, budget, range(len(graph)), [], 0)
        if everything is not None:
            return everything
        goal = Fraction(least_step_ns(graph, budget) - graph.compute_ns)
        given = tuple(range(len(graph)))
        plans = [*_known(graph, budget), *self._paced(graph, budget, given)]
        best = _best(graph, plans)
        if best.order != given and stall_of(graph, best) > goal:
            plans += self._paced(graph, budget, best.order)
        if len(graph) <= SMALL and stall_of(graph, _best(graph, plans)) > goal:
            plans += self._placed(graph, budget, plans, goal)
        return _best(graph, plans)

    def _paced(self, graph: Graph, budget: Budget, order: tuple[int, ...]) -> Iterator[Plan]:
        problem = Problem.of(graph, budget, order)
        states = [(cost(problem, state), state) for state in paced_states(problem)]
        fitting = [(at, state) for at, state in states if at is not None]
        fitting.sort(key=lambda each: each[0])
        evaluations = min(self.evaluations, 1_000_000 // len(graph))
        for at, state in fitting[:3]:
            better, _ = improved(problem, state, at, evaluations // 3, Random(self.seed))
            for found in (better, state):
                plan = to_plan(problem, found)
                if plan is not None:
                    yield plan

    def _placed(
        self, graph: Graph, budget: Budget, plans: list[Plan], goal: Fraction
    ) -> Iterator[Plan]:
        search = PlaceSearch(graph, budget, self.seed)
        placings = {search.start_from(plan) for plan in plans}
        starts = sorted(state for state in placings if state and search.cost(state))
        for start in starts:
            better, _ = search.improve(start, self.evaluations // len(starts), goal)
            yield search.to_plan(better)


def _known(graph: Graph, budget: Budget) -> Iterator[Plan]:
    planners: tuple[Planner, ...] = (Greedy(), Greedy(PUBLISHED_SLOT_BYTES), paging)
    for planner in planners:
        try:
            yield planner(graph, budget)
        except PlanError:
            continue


def _best(graph: Graph, plans: Sequence[Plan]) -> Plan:
    """Of equal stalls, the one that stages less."""
    return min(plans, key=lambda plan: _cost(graph, plan))


def _cost(graph: Graph, plan: Plan) -> Cost:
    return stall_of(graph, plan), sum(graph.transfer_ns(t.operators) for t in plan.transfers)
