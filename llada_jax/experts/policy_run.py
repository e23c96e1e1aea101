"""Policies: a scheduler, a cache, and what the link does when nobody needs it; their decisions, one
layer after another, with the time that they take on a machine; and traces replayed under them.

A replayed trace and a forward that really runs both drive a `PolicyRun`, so that what is modelled
is what runs.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from llada_jax.config import require, require_choices
from llada_jax.experts.cache import (
    MRS_ALPHA,
    CacheName,
    Swap,
    Visit,
    best,
    make_cache,
    refills,
    swaps,
    visits,
)
from llada_jax.experts.routing import RoutingTrace
from llada_jax.experts.schedule import (
    IDLE,
    SCHEDULERS,
    ExpertCosts,
    Link,
    Schedule,
    Scheduler,
    fastest,
)

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
        require_choices(self)


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
        _require_slots(slots, n_experts)
        profile = profile if policy.profiled else np.zeros_like(profile)
        self.cache = make_cache(policy.cache, profile, alpha=policy.alpha)
        self.seconds = 0.0
        self.hits = self.uses = 0
        most_used = make_cache("static", profile)
        self.resident = np.stack([best(most_used.worth(n), slots) for n in range(n_layers)])
        self._policy, self._costs, self._slots = policy, costs, slots
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
            present = before.copy()
            present[schedule.transferred] = True
            worth = np.where(present, self.cache.worth(layer), -np.inf)
            self.resident[layer] = best(worth, self._slots) & present
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
        if self._policy.prefetch:
            wanted = swaps(visit, self.cache, self.resident, self._seconds)
            while self._link_end < until and (swap := next(wanted, None)):
                done.append(self._started(swap))
        if self._policy.refill:
            wanted = refills(visit.layer, self.cache, self.resident)
            while self._link_end + self._costs.transfer <= until and (swap := next(wanted, None)):
                done.append(self._started(swap))
        return tuple(done)

    def _seconds(self, loads: Int[np.ndarray, " E"], resident: Bool[np.ndarray, " E"]) -> float:
        return self._schedule(loads, resident, self._costs).seconds

    def _started(self, swap: Swap) -> Swap:
        self.resident[swap.layer, [swap.expert, swap.victim]] = True, False
        self._link_end += self._costs.transfer
        self._in_flight = swap
        return swap


class Outcome(NamedTuple):
    """What a policy made of a trace, without the steps that profiled it."""

    seconds: Float[np.ndarray, " S"]
    """Of each step."""
    committed: Int[np.ndarray, " S"]
    hit_rate: float
    """Share of the activated experts that were resident when their layer began."""

    @property
    def tokens_per_second(self) -> float:
        return float(self.committed.sum() / self.seconds.sum())


def replay(
    trace: RoutingTrace, policy: ExpertPolicy, costs: ExpertCosts, slots: int, *, profile_steps: int
) -> Outcome:
    """Runs the steps after the first `profile_steps`, which all policies have seen before.

    The time that planning itself takes is not counted.
    """
    _require_profile(trace, profile_steps)
    run = PolicyRun(policy, costs, slots, trace.loads[:profile_steps])
    for step in range(profile_steps):
        for visit in visits(trace, step):
            run.cache.observe(visit)
    ends = []
    for step in range(profile_steps, trace.n_steps):
        for visit in visits(trace, step):
            run.run_layer(visit)
        ends.append(run.seconds)
    seconds, committed = np.diff(ends, prepend=0.0), trace.committed[profile_steps:]
    return Outcome(seconds, committed, run.hits / max(run.uses, 1))


def hit_rate(
    trace: RoutingTrace, policy: ExpertPolicy, costs: ExpertCosts, slots: int, *, profile_steps: int
) -> float:
    """Returns the share of the activated experts that are resident when their layer begins.

    Slots are empty at first; the first `profile_steps` steps fill them, and do not count.
    """
    _require_profile(trace, profile_steps)
    run = PolicyRun(policy, costs, slots, trace.loads[:profile_steps])
    run.resident[:] = False
    for step in range(trace.n_steps):
        if step == profile_steps:
            run.hits = run.uses = 0
        for visit in visits(trace, step):
            run.run_layer(visit)
    return run.hits / run.uses


def bound(
    trace: RoutingTrace,
    costs: ExpertCosts,
    slots: int,
    *,
    profile_steps: int,
    scheduler: Scheduler = fastest,
) -> Outcome:
    """Returns what no policy with so many slots a layer, and this scheduler, is faster than.

    In every layer the slots hold the experts of highest load, as if each step's routing had been
    known and bringing them in had cost nothing. With `fastest`, no policy at all is faster.
    """
    _require_profile(trace, profile_steps)
    _require_slots(slots, trace.n_experts)
    seconds, hits, uses = [], 0, 0
    for loads_of_step in trace.loads[profile_steps:]:
        total = 0.0
        for loads in loads_of_step:
            resident = best(loads.astype(float), slots)
            total += costs.dense + scheduler(loads, resident, costs, IDLE).seconds
            hits += int(np.count_nonzero((loads > 0) & resident))
            uses += int(np.count_nonzero(loads))
        seconds.append(total)
    return Outcome(np.array(seconds), trace.committed[profile_steps:], hits / max(uses, 1))


def _require_slots(slots: int, n_experts: int) -> None:
    allowed = f"1 to {n_experts} experts of a layer"
    require(0 < slots <= n_experts, f"slots is {slots}; allowed: {allowed}")


def _require_profile(trace: RoutingTrace, steps: int) -> None:
    allowed = f"1 to {trace.n_steps - 1}"
    require(0 < steps < trace.n_steps, f"profile_steps is {steps}; allowed: {allowed}")
