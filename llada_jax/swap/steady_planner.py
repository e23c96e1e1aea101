"""The planner for denoising loops: the least stall of a step in a loop without end, and of plans
that stall equally the one that stages less.

It starts from what is known to be good (the paper's plan, transfers spread over the step), counts
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
from llada_jax.swap.slot_search import SlotSearch
from llada_jax.swap.stall_times import stall_of

STARTS = 3
"""States from which a search begins; they share its evaluations."""
PLACES_TRIED = 1_000_000
"""Operators that the plans of a search have together, so that large graphs get fewer plans."""


@dataclass(frozen=True)
class Steady:
    """The planner. `evaluations` are the plans that a search tries, fewer for large graphs."""

    evaluations: int = 3000

    def __post_init__(self) -> None:
        require(self.evaluations >= 0, f"evaluations is {self.evaluations}; allowed: 0 or more")

    def __call__(self, graph: Graph, budget: Budget) -> Plan:
        given = tuple(range(len(graph)))
        room_for_weights(graph, budget, given)
        everything = in_slots(graph, budget, given, [], 0)
        if everything is not None:
            return everything
        goal = Fraction(least_step_ns(graph, budget) - graph.compute_ns)
        plans = [*_known(graph, budget), *self._in_slots(graph, budget, given, goal)]
        best = _best(graph, plans)
        if best.order != given and stall_of(graph, best) > goal:
            plans += self._in_slots(graph, budget, best.order, goal)
        return _best(graph, plans)

    def _in_slots(
        self, graph: Graph, budget: Budget, order: tuple[int, ...], goal: Fraction
    ) -> Iterator[Plan]:
        search = SlotSearch(graph, budget, order)
        evaluations = min(self.evaluations, PLACES_TRIED // len(graph)) // STARTS
        for at, state in search.starts(STARTS):
            better = search.improve(state, at, goal, evaluations, Random(0))
            yield from filter(None, (search.plan(better), search.plan(state)))


def _known(graph: Graph, budget: Budget) -> Iterator[Plan]:
    planners: tuple[Planner, ...] = (Greedy(), Greedy(PUBLISHED_SLOT_BYTES), paging)
    for planner in planners:
        try:
            yield planner(graph, budget)
        except PlanError:
            continue


def _best(graph: Graph, plans: Sequence[Plan]) -> Plan:
    """Returns the plan with the least stall; of equal ones, the one that stages less."""
    return min(
        plans,
        key=lambda plan: (
            stall_of(graph, plan),
            sum(graph.transfer_ns(transfer.operators) for transfer in plan.transfers),
        ),
    )
