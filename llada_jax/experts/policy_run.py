"""Expert policies, and the decisions they make layer by layer.

A policy combines a scheduler, a cache, and rules for using the link while it is idle. `PolicyRun`
executes it. Both a replayed trace and a real forward pass drive a `PolicyRun`, so the policy that
is simulated is the policy that runs.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from llada_jax.config import require, require_choices
from llada_jax.experts.cache import MRS_ALPHA, CacheName, Swap, best, make_cache, refills, swaps
from llada_jax.experts.routing import RoutingTrace, Visit
from llada_jax.experts.schedule import SCHEDULERS, ExpertCosts, Link, Schedule, Scheduler, fastest

SchedulerName = Literal["earliest_finish", "resident_or_cpu", "all_on_accelerator"]


@dataclass(frozen=True, kw_only=True)
class ExpertPolicy:
    """Which processor runs an expert, which experts stay, and which ones an idle link loads."""

    scheduler: SchedulerName
    cache: CacheName = "static"
    prefetch: bool = False
    """Whether to load experts that the next layers' gates predict."""
    refill: bool = False
    """Whether to load the experts that the cache policy prefers while the link is idle."""
    alpha: float = MRS_ALPHA
    profiled: bool = True
    """Whether the experts used most in a profile are resident at first (and always in a static
    cache), instead of the experts with the lowest indices."""

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


class LayerDecision(NamedTuple):
    schedule: Schedule
    resident_after: Bool[np.ndarray, " E"]
    """After the layer: experts transferred by the schedule may have replaced others."""
    swaps: tuple[Swap, ...] = ()
    """Early transfers, for any layer, that start while this layer runs."""


class PolicyRun:
    """The state of a policy: resident experts, the link, and simulated time."""

    def __init__(
        self,
        policy: ExpertPolicy,
        costs: ExpertCosts,
        slots: int,
        profile: Int[np.ndarray, "S N E"],
    ) -> None:
        """Starts with the experts used most in a profile of loads, or with the first ones.

        Raises ValueError for less than one slot, or more slots than experts in a layer.
        """
        _require_slots(slots, profile.shape[2])
        used = (profile > 0).sum(axis=0) * float(policy.profiled)
        self.resident = np.stack([best(layer_use, slots) for layer_use in used])
        self.cache = make_cache(policy.cache, used, policy.alpha)
        self.seconds = 0.0
        self.hits = self.uses = 0
        self._policy, self._costs, self._slots = policy, costs, slots
        self._schedule = SCHEDULERS[policy.scheduler]
        self._link_end = 0.0
        self._in_flight: Swap | None = None

    def run_layer(self, visit: Visit) -> LayerDecision:
        """Decides a layer with known routing, and advances the simulated time.

        A layer is its dense part, after which the routing is known, and its experts, which take the
        time of the schedule. The link serves the schedule first. From then until the next layer's
        routing is known it may start early transfers; the last prefetch may extend into the next
        layer and delay that layer's transfers, a refill may not. A slot is freed when the transfer
        into it starts. Transferred experts stay if the cache policy values them more than a
        resident expert.
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
            worth = np.where(present, self.cache.worth[layer], -np.inf)
            self.resident[layer] = best(worth, self._slots) & present
        after = self.resident[layer].copy()
        ahead = self._use_idle_link(visit, self.seconds + schedule.seconds + self._costs.dense)
        self.seconds += schedule.seconds
        return LayerDecision(schedule, after, ahead)

    def _link(self, layer: int) -> Link:
        """Returns the state of the link for this layer: it may be busy with an early transfer."""
        busy = max(0.0, self._link_end - self.seconds)
        swap = self._in_flight
        is_mine = busy > 0 and swap is not None and swap.layer == layer
        return Link(busy, swap.expert if is_mine and swap else None)

    def _use_idle_link(self, visit: Visit, until: float) -> tuple[Swap, ...]:
        """Starts early transfers before `until`; refills also end before it."""
        started: list[Swap] = []
        self._link_end = max(self._link_end, self.seconds)
        if self._policy.prefetch:
            schedule = partial(self._schedule, costs=self._costs)
            candidates = swaps(visit, self.cache, self.resident, schedule)
            while self._link_end < until and (swap := next(candidates, None)):
                started.append(self._start(swap))
        if self._policy.refill:
            candidates = refills(visit.layer, self.cache, self.resident)
            transfer = self._costs.transfer
            while self._link_end + transfer <= until and (swap := next(candidates, None)):
                started.append(self._start(swap))
        return tuple(started)

    def _start(self, swap: Swap) -> Swap:
        self.resident[swap.layer, [swap.expert, swap.victim]] = True, False
        self._link_end += self._costs.transfer
        self._in_flight = swap
        return swap


class Outcome(NamedTuple):
    """The result of a policy on a trace, without the steps of the profile."""

    seconds: Float[np.ndarray, " S"]
    """Duration of each step."""
    committed: Int[np.ndarray, " S"]
    hit_rate: float
    """Share of the activated experts that were resident at the beginning of their layer."""

    @property
    def tokens_per_second(self) -> float:
        return float(self.committed.sum() / self.seconds.sum())


def replay(
    trace: RoutingTrace,
    policy: ExpertPolicy,
    costs: ExpertCosts,
    slots: int,
    *,
    profile_steps: int,
    empty: bool = False,
) -> Outcome:
    """Simulates the steps after the first `profile_steps`, which the policy knows in advance. If
    slots are `empty` at first, the profile's steps fill them. Planning time is not included."""
    _require_profile(trace, profile_steps)
    run = PolicyRun(policy, costs, slots, trace.loads[:profile_steps])
    if empty:
        run.resident[:] = False
    ends = []
    for step in range(trace.n_steps):
        if step == profile_steps:
            run.hits = run.uses = 0
        for visit in trace.visits(step):
            if empty or step >= profile_steps:
                run.run_layer(visit)
            else:
                run.cache.observe(visit)
        ends.append(run.seconds)
    seconds, committed = np.diff(ends[profile_steps - 1 :]), trace.committed[profile_steps:]
    return Outcome(seconds, committed, run.hits / max(run.uses, 1))


def bound(
    trace: RoutingTrace,
    costs: ExpertCosts,
    slots: int,
    *,
    profile_steps: int,
    scheduler: Scheduler = fastest,
) -> Outcome:
    """Returns a lower bound on the time of any policy with these slots per layer and scheduler.

    In every layer the slots have the experts of highest load, as if each step's routing had been
    known in advance and transfers were free. With `fastest`, it is a bound for all schedulers.
    """
    _require_profile(trace, profile_steps)
    _require_slots(slots, trace.n_experts)
    seconds, hits, uses = [], 0, 0
    for loads_of_step in trace.loads[profile_steps:]:
        total = 0.0
        for loads in loads_of_step:
            resident = best(loads.astype(float), slots)
            total += costs.dense + scheduler(loads, resident, costs).seconds
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
