"""A routing trace on a machine under a policy: how long every step takes, and what it hits."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from llada_jax.config import require, require_choice
from llada_jax.experts.cache import (
    MRS_ALPHA,
    TIDE_INTERVAL,
    CacheName,
    CachePolicy,
    StaticFrequency,
    Visit,
    best,
    make_cache,
    visits,
)
from llada_jax.experts.costs import ExpertCosts
from llada_jax.experts.prefetch import (
    LookAhead,
    Prefetcher,
    Swap,
    denoised_again,
    gates_ahead,
    no_look_ahead,
)
from llada_jax.experts.routing import RoutingTrace
from llada_jax.experts.schedule import SCHEDULERS, Link, fastest

SchedulerName = Literal["earliest_finish", "fastest", "resident_or_cpu", "all_on_accelerator"]
Prefetch = Literal["none", "gates", "denoised_again"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A scheduler, a cache policy, and what the link does when no schedule needs it."""

    scheduler: SchedulerName
    cache: CacheName = "static"
    prefetch: Prefetch = "none"
    refill: bool = False
    """Missed experts that the cache policy wants are brought in while the link is idle."""
    alpha: float = MRS_ALPHA
    interval: int = TIDE_INTERVAL

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


class Outcome(NamedTuple):
    """What a policy made of a trace, without the steps that profiled it."""

    seconds: Float[np.ndarray, " S"]
    """Of each step."""
    committed: Int[np.ndarray, " S"]
    hit_rate: float
    """Share of the activated experts that were resident when their layer began."""
    transfers: int
    """Experts moved, for schedules and ahead of time."""

    @property
    def tokens_per_second(self) -> float:
        return float(self.committed.sum() / self.seconds.sum())


def simulate(
    trace: RoutingTrace, policy: Policy, costs: ExpertCosts, slots: int, *, profile_steps: int
) -> Outcome:
    """Runs the steps after the first `profile_steps` one after another, layer by layer.

    A layer is its dense part, after which the router is known, and its experts on the timelines
    that the schedule gives. The link serves the schedule first. From then until the next router is
    known it may start transfers ahead of time, of which the last may reach into the next layer and
    keep that layer's link busy. A transfer's slot is given up when it starts; experts that a
    schedule moves may stay where the cache policy thinks them worth more than a resident one.

    All policies begin with the experts that the profile used most, and see the profile's steps.
    """
    _check(trace, slots, profile_steps)
    return _Simulation(trace, policy, costs, slots, profile_steps).run()


def _check(trace: RoutingTrace, slots: int, profile_steps: int) -> None:
    require(
        0 < slots <= trace.n_experts,
        f"slots is {slots}; allowed: 1 to {trace.n_experts} experts of a layer",
    )
    require(
        0 < profile_steps < trace.n_steps,
        f"profile_steps is {profile_steps}; allowed: 1 to {trace.n_steps - 1}",
    )


class _Simulation:
    def __init__(
        self,
        trace: RoutingTrace,
        policy: Policy,
        costs: ExpertCosts,
        slots: int,
        profile_steps: int,
    ) -> None:
        self._trace = trace
        self._costs = costs
        self._first = profile_steps
        self._schedule = SCHEDULERS[policy.scheduler]
        self._cache = make_cache(
            policy.cache,
            trace,
            profile_steps=profile_steps,
            alpha=policy.alpha,
            interval=policy.interval,
        )
        self._prefetcher = Prefetcher(
            _look_ahead(policy.prefetch, trace, self._cache),
            self._cache,
            self._schedule,
            costs,
            refill=policy.refill,
        )
        profile = StaticFrequency(trace.loads[:profile_steps])
        layers = range(trace.n_layers)
        self._resident = np.stack([best(profile.worth(layer), slots) for layer in layers])
        self._now = self._link_end = 0.0
        self._in_flight: Swap | None = None
        self._hits = self._uses = self._transfers = 0

    def run(self) -> Outcome:
        for step in range(self._first):
            for visit in visits(self._trace, step):
                self._cache.observe(visit)
        ends = []
        for step in range(self._first, self._trace.n_steps):
            for visit in visits(self._trace, step):
                self._now += self._costs.dense
                self._run_layer(visit)
            ends.append(self._now)
        return Outcome(
            np.diff(ends, prepend=0.0),
            self._trace.committed[self._first :],
            self._hits / self._uses if self._uses else 1.0,
            self._transfers,
        )

    def _run_layer(self, visit: Visit) -> None:
        layer, loads = visit.layer, visit.loads
        resident = self._resident[layer]
        link = self._link(layer)
        plan = self._schedule(loads, resident, self._costs, link)
        self._uses += np.count_nonzero(loads)
        self._hits += np.count_nonzero((loads > 0) & resident)
        self._cache.observe(visit)
        if plan.transferred:
            self._link_end = self._now + plan.transfer_seconds
            self._transfers += len(plan.transferred)
            self._keep_what_came(layer, plan.transferred)
        self._use_idle_link(visit.step, layer, self._now + plan.seconds + self._costs.dense)
        self._now += plan.seconds

    def _link(self, layer: int) -> Link:
        """The link as this layer finds it: perhaps still busy with the last transfer."""
        busy = max(0.0, self._link_end - self._now)
        flying = self._in_flight
        mine = busy > 0 and flying is not None and flying.layer == layer
        return Link(busy, flying.expert if mine and flying else None)

    def _keep_what_came(self, layer: int, experts: list[int]) -> None:
        resident = self._resident[layer]
        present = resident.copy()
        present[experts] = True
        worth = np.where(present, self._cache.worth(layer), -np.inf)
        self._resident[layer] = best(worth, np.count_nonzero(resident))

    def _use_idle_link(self, step: int, layer: int, until: float) -> None:
        """Transfers ahead of time that start before `until`."""
        self._link_end = max(self._link_end, self._now)
        if self._link_end >= until:
            return
        for swap in self._prefetcher.swaps(step, layer, self._resident):
            self._resident[swap.layer, [swap.expert, swap.victim]] = True, False
            self._link_end += self._costs.transfer
            self._in_flight = swap
            self._transfers += 1
            if self._link_end >= until:
                return


def _look_ahead(name: Prefetch, trace: RoutingTrace, cache: CachePolicy) -> LookAhead:
    return {
        "none": lambda: no_look_ahead,
        "gates": lambda: gates_ahead(trace),
        "denoised_again": lambda: denoised_again(trace.n_layers, cache),
    }[name]()


def bound(trace: RoutingTrace, costs: ExpertCosts, slots: int, *, profile_steps: int) -> Outcome:
    """No policy with so many slots a layer is faster.

    In every layer the slots hold the experts of highest load, as if each step's routing had been
    known and bringing them in had cost nothing; the schedule is the fastest of all.
    """
    _check(trace, slots, profile_steps)
    seconds, hits, uses = [], 0, 0
    for loads_of_step in trace.loads[profile_steps:]:
        total = 0.0
        for loads in loads_of_step:
            resident = best(loads.astype(float), slots)
            total += costs.dense + fastest(loads, resident, costs).seconds
            hits += np.count_nonzero((loads > 0) & resident)
            uses += np.count_nonzero(loads)
        seconds.append(total)
    return Outcome(np.array(seconds), trace.committed[profile_steps:], hits / max(uses, 1), 0)
