"""The planners by name."""

from collections.abc import Mapping

from llada_jax.config import require
from llada_jax.swap.address_plan import Planner
from llada_jax.swap.greedy_planner import Greedy
from llada_jax.swap.steady_planner import steady

PLANNERS: Mapping[str, Planner] = {"greedy": Greedy(), "steady": steady}
"""The paper's planner, and ours."""


def planner(name: str) -> Planner:
    """Returns the planner of this name; raises ValueError for an unknown one."""
    require(name in PLANNERS, f"planner is {name!r}; allowed: {', '.join(map(repr, PLANNERS))}")
    return PLANNERS[name]
