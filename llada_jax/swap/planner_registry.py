"""The planners by name."""

from collections.abc import Mapping

from llada_jax.config import require
from llada_jax.swap.address_plan import Planner
from llada_jax.swap.greedy_planner import Greedy
from llada_jax.swap.paging_planner import none, paging
from llada_jax.swap.steady_planner import Steady

PLANNERS: Mapping[str, Planner] = {
    "none": none,
    "paging": paging,
    "greedy": Greedy(),
    "steady": Steady(),
}
"""No plan at all, pages on demand, the paper's planner, and ours."""


def planner(name: str) -> Planner:
    """Returns the planner of this name; raises ValueError for an unknown one."""
    require(name in PLANNERS, f"planner is {name!r}; allowed: {', '.join(map(repr, PLANNERS))}")
    return PLANNERS[name]
