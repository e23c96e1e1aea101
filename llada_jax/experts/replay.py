"""A routing trace on a machine under a policy: how long every step takes, and what it hits."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from llada_jax.config import require
from llada_jax.experts.cache import best, visits
from llada_jax.experts.costs import ExpertCosts
from llada_jax.experts.policy_run import ExpertPolicy, PolicyRun
from llada_jax.experts.routing import RoutingTrace
from llada_jax.experts.schedule import IDLE, Scheduler, fastest


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


def replay(
    trace: RoutingTrace, policy: ExpertPolicy, costs: ExpertCosts, slots: int, *, profile_steps: int
) -> Outcome:
    """Runs the steps after the first `profile_steps`, which all policies have seen before.

    The time that planning itself takes is not counted.
    """
    _check(trace, slots, profile_steps)
    run = PolicyRun(policy, costs, slots, trace.loads[:profile_steps])
    for step in range(profile_steps):
        for visit in visits(trace, step):
            run.cache.observe(visit)
    ends = []
    for step in range(profile_steps, trace.n_steps):
        for visit in visits(trace, step):
            run.run_layer(visit)
        ends.append(run.seconds)
    return Outcome(
        np.diff(ends, prepend=0.0),
        trace.committed[profile_steps:],
        run.hits / max(run.uses, 1),
        run.transfers,
    )


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
    _check(trace, slots, profile_steps)
    seconds, hits, uses = [], 0, 0
    for loads_of_step in trace.loads[profile_steps:]:
        total = 0.0
        for loads in loads_of_step:
            resident = best(loads.astype(float), slots)
            total += costs.dense + scheduler(loads, resident, costs, IDLE).seconds
            hits += int(np.count_nonzero((loads > 0) & resident))
            uses += int(np.count_nonzero(loads))
        seconds.append(total)
    return Outcome(np.array(seconds), trace.committed[profile_steps:], hits / max(uses, 1), 0)


def _check(trace: RoutingTrace, slots: int, profile_steps: int) -> None:
    require(
        0 < slots <= trace.n_experts,
        f"slots is {slots}; allowed: 1 to {trace.n_experts} experts of a layer",
    )
    require(
        0 < profile_steps < trace.n_steps,
        f"profile_steps is {profile_steps}; allowed: 1 to {trace.n_steps - 1}",
    )
