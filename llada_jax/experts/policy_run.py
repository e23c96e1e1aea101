"""Policies: a scheduler, a cache, and what the link does when nobody needs it; and their decisions,
one layer after another, with the time that they take on a machine.

A replayed trace and a forward that really runs both drive this object, so that what is modelled is
what runs.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from llada_jax.config import require, require_choice
from llada_jax.experts.cache import MRS_ALPHA, CacheName, ExpertCache, Visit, best, make_cache
from llada_jax.experts.costs import ExpertCosts
from llada_jax.experts.prefetch import Swap, gates_ahead, refills, swaps
from llada_jax.experts.schedule import SCHEDULERS, Link, Schedule

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


class LayerDecision(NamedTuple):
    """What is to happen in one layer."""

    schedule: Schedule
    resident_after: Bool[np.ndarray, " E"]
    """Once its experts have run: what the schedule brought may have replaced others."""
    swaps: tuple[Swap, ...] = ()
    """Transfers ahead of time that start while it runs, for any layer."""


class PolicyRun:
    """Knows what is resident, how far the link is, and what time it is."""

    def __init__(
        self,
        policy: ExpertPolicy,
        costs: ExpertCosts,
        slots: int,
        profile: Int[np.ndarray, "S N E"],
    ) -> None:
        """Starts with the experts that a profile of loads used most, or with the first ones.

        Raises ValueError for slots that are fewer than one or more than the experts of a layer.
        """
        n_layers, n_experts = profile.shape[1:]
        require(
            0 < slots <= n_experts,
            f"slots is {slots}; allowed: 1 to {n_experts} experts of a layer",
        )
        profile = profile if policy.profiled else np.zeros_like(profile)
        self.cache = make_cache(policy.cache, profile, alpha=policy.alpha)
        self.seconds = 0.0
        self.hits = self.uses = self.transfers = 0
        frequency = ExpertCache(profile)
        self.resident = np.stack([best(frequency.worth(n), slots) for n in range(n_layers)])
        self._policy, self._costs = policy, costs
        self._schedule = SCHEDULERS[policy.scheduler]
        self._link_end = 0.0
        self._in_flight: Swap | None = None

    def run_layer(self, visit: Visit) -> LayerDecision:
        """Decides the layer of a visit, whose routing is known, and lets its time pass.

        A layer is its dense part, after which the router is known, and its experts on the timelines
        of the schedule. The link serves the schedule first. From then until the next router is
        known it may start transfers ahead of time, of which the last may reach into the next layer
        and keep that layer's link busy; a refill may not. A slot is given up when the transfer into
        it starts; what a schedule brings stays where the cache policy thinks it worth more than a
        resident.
        """
        layer = visit.layer
        self.seconds += self._costs.dense
        before = self.resident[layer].copy()
        schedule = self._schedule(visit.loads, before, self._costs, self._link(layer))
        self.uses += int(np.count_nonzero(visit.loads))
        self.hits += int(np.count_nonzero((visit.loads > 0) & before))
        self.cache.observe(visit)
        if schedule.transferred:
            self._link_end = self.seconds + schedule.transfer_seconds
            self.transfers += len(schedule.transferred)
            present = before.copy()
            present[schedule.transferred] = True
            worth = np.where(present, self.cache.worth(layer), -np.inf)
            self.resident[layer] = best(worth, int(np.count_nonzero(before)))
        after = self.resident[layer].copy()
        ahead = self._use_idle_link(visit, self.seconds + schedule.seconds + self._costs.dense)
        self.seconds += schedule.seconds
        return LayerDecision(schedule, after, ahead)

    def _link(self, layer: int) -> Link:
        """Returns the link as this layer finds it: perhaps busy with the last transfer."""
        busy = max(0.0, self._link_end - self.seconds)
        flying = self._in_flight
        mine = busy > 0 and flying is not None and flying.layer == layer
        return Link(busy, flying.expert if mine and flying else None)

    def _use_idle_link(self, visit: Visit, until: float) -> tuple[Swap, ...]:
        """Starts transfers ahead of time before `until`; refills end before it."""
        done: list[Swap] = []
        self._link_end = max(self._link_end, self.seconds)
        forecast = gates_ahead(visit, len(self.resident)) if self._policy.prefetch else {}
        wanted = swaps(forecast, self.cache, self.resident, self._seconds)
        while self._link_end < until and (swap := next(wanted, None)):
            done.append(self._started(swap))
        if not self._policy.refill:
            return tuple(done)
        wanted = refills(visit.layer, self.cache, self.resident)
        while self._link_end + self._costs.transfer <= until and (swap := next(wanted, None)):
            done.append(self._started(swap))
        return tuple(done)

    def _seconds(self, loads: Float[np.ndarray, " E"], resident: Bool[np.ndarray, " E"]) -> float:
        return self._schedule(loads, resident, self._costs).seconds

    def _started(self, swap: Swap) -> Swap:
        self.resident[swap.layer, [swap.expert, swap.victim]] = True, False
        self._link_end += self._costs.transfer
        self._in_flight = swap
        self.transfers += 1
        return swap
