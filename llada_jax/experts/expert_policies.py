"""Policies: a scheduler, a cache, and what the link does when nobody needs it."""

from dataclasses import dataclass, replace
from typing import Literal

from llada_jax.config import require_choice
from llada_jax.experts.cache import MRS_ALPHA, CacheName

SchedulerName = Literal["earliest_finish", "fastest", "resident_or_cpu", "all_on_accelerator"]
Prefetch = Literal["none", "gates", "denoised_again"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Says who runs an expert, which ones stay, and what an idle link brings in."""

    scheduler: SchedulerName
    cache: CacheName = "static"
    prefetch: Prefetch = "none"
    refill: bool = False
    """What the cache policy wants is brought in while the link has nothing else to do."""
    alpha: float = MRS_ALPHA

    def __post_init__(self) -> None:
        require_choice("scheduler", self.scheduler, SchedulerName)
        require_choice("cache", self.cache, CacheName)
        require_choice("prefetch", self.prefetch, Prefetch)


POLICIES = {
    "ktransformers": Policy(scheduler="resident_or_cpu"),
    "adapmoe": Policy(scheduler="all_on_accelerator", cache="lru", prefetch="gates"),
    "tide": Policy(scheduler="resident_or_cpu", cache="tide", refill=True),
    "lru": Policy(scheduler="earliest_finish", cache="lru", refill=True),
    "lfu": Policy(scheduler="earliest_finish", cache="lfu", refill=True),
    "mrs": Policy(scheduler="earliest_finish", cache="mrs", refill=True),
    "hybrimoe": Policy(scheduler="earliest_finish", cache="mrs", prefetch="gates", refill=True),
    "denoising": Policy(
        scheduler="fastest", cache="expected_load", prefetch="denoised_again", refill=True
    ),
}
"""By name; `denoising` is ours."""
ORACLE = Policy(scheduler="fastest", cache="belady", refill=True)
"""Knows the future, but has the same link as everybody."""
TOLD_OF_NEW_BLOCKS = replace(POLICIES["denoising"], cache="foretold")
"""Ours, if it knew what a new block will route: how much drafts could be worth at the most."""
