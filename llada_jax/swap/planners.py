"""The planners by name."""

from collections.abc import Mapping

from llada_jax.config import require
from llada_jax.swap.greedy import Greedy
from llada_jax.swap.paging import none, paging
from llada_jax.swap.plan import Planner
from llada_jax.swap.steady import Steady

PLANNERS: Mapping[str, Planner] = {
    "none": none,
    "paging": paging,
    "greedy": Greedy(),
    "steady": Steady(),
}
"""No plan at all, pages on demand, the paper's planner, and ours."""


def planner(name: str) -> Planner:
    """A planner by name; raises ValueError for an unknown one."""
    require(name in PLANNERS, f"planner is {name!r}; allowed: {', '.join(map(repr, PLANNERS))}")
    return PLANNERS[name]
