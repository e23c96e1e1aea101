"""Policies: a scheduler, a cache, and what the link does when nobody needs it."""

from dataclasses import dataclass
from typing import Literal

from llada_jax.config import require_choice
from llada_jax.experts.cache import MRS_ALPHA, CacheName

SchedulerName = Literal["earliest_finish", "resident_or_cpu", "all_on_accelerator"]


@dataclass(frozen=True, kw_only=True)
class ExpertPolicy:
    """Says who runs an expert, which ones stay, and what an idle link brings in."""

    scheduler: SchedulerName
    cache: CacheName = "static"
    prefetch: bool = False
    """What the next layers' gates ask for is brought in ahead of time."""
    refill: bool = False
    """What the cache policy wants is brought in while the link has nothing else to do."""
    alpha: float = MRS_ALPHA
    profiled: bool = True
    """At first, and for ever in a static cache, the experts stay that a profile used most; else
    those of lowest index."""

    def __post_init__(self) -> None:
        require_choice("scheduler", self.scheduler, SchedulerName)
        require_choice("cache", self.cache, CacheName)


POLICIES = {
    "ktransformers": ExpertPolicy(scheduler="resident_or_cpu"),
    "adapmoe": ExpertPolicy(scheduler="all_on_accelerator", cache="lru", prefetch=True),
    "tide": ExpertPolicy(scheduler="resident_or_cpu", cache="tide", refill=True),
    "lru": ExpertPolicy(scheduler="earliest_finish", cache="lru", refill=True),
    "mrs": ExpertPolicy(scheduler="earliest_finish", cache="mrs", refill=True),
    "hybrimoe": ExpertPolicy(scheduler="earliest_finish", cache="mrs", prefetch=True, refill=True),
}
"""By name."""
