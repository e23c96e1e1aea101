"""Measures how good HybriMoE's schedules of single layers are, and how quickly they are made."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from experiments.experts.expert_prices import phone_costs
from experiments.experts.policies_on_phones import draw_denoising
from experiments.harness.results import ResultRow
from experiments.harness.timers import best_of
from llada_jax.experts.cache import visits
from llada_jax.experts.costs import ExpertCosts
from llada_jax.experts.expert_policies import POLICIES
from llada_jax.experts.policy_run import PolicyRun
from llada_jax.experts.schedule import earliest_finish, fastest
from llada_jax.experts.shapes import LLADA2_MINI

SMALL_LAYERS = 60


def measure_schedules(seed: int, repeats: int = 200) -> Iterator[ResultRow]:
    """Measures the gap to the shortest plan of small layers, and how long planning takes."""
    gaps = _gaps(np.random.default_rng(seed))
    for name, value in (("mean", np.mean(gaps)), ("worst", max(gaps))):
        row = f"schedule_gap/earliest_finish/{name}"
        yield ResultRow(row, float(value), "of the shortest plan", n=SMALL_LAYERS)
    rng = np.random.default_rng(seed)
    loads = rng.integers(1, 20, LLADA2_MINI.n_experts)
    resident = rng.random(loads.size) < 0.5
    costs = phone_costs("SM8750", LLADA2_MINI)
    times = {
        rule.__name__: 1e3 * best_of(partial(rule, loads, resident, costs), repeats)[1]
        for rule in (earliest_finish, fastest)
    }
    for rule, value in times.items():
        yield ResultRow(f"schedule_256_experts_ms/{rule}", value, "ms")
    yield from _decisions(seed, costs)


def _decisions(seed: int, costs: ExpertCosts) -> Iterator[ResultRow]:
    """Times all that a policy decides for one layer on this machine, and compares it with the
    layer's modelled time, which has no planning in it.

    The experts wait for the schedule alone; what to keep and to fetch is decided while they run.
    """
    trace = draw_denoising(LLADA2_MINI, seed, blocks=2)
    profile = int(np.flatnonzero(trace.begins_block)[1])
    coming = [each for step in range(profile, trace.n_steps) for each in visits(trace, step)]
    for name, policy in POLICIES.items():
        run = PolicyRun(policy, costs, LLADA2_MINI.n_experts // 4, trace.loads[:profile])
        planning = float(np.median([best_of(partial(run.run_layer, visit))[1] for visit in coming]))
        share = planning / (run.seconds / len(coming))
        yield ResultRow(f"planning/{name}/ms_a_layer", planning * 1e3, "ms")
        yield ResultRow(
            f"planning/{name}/of_a_layer", share, "of its modelled time", kind="modelled"
        )


def _gaps(rng: np.random.Generator) -> list[float]:
    """Returns excesses over the optimum, on layers of five experts and random machines."""
    gaps = []
    for _ in range(SMALL_LAYERS):
        loads = rng.integers(1, 9, 5)
        resident = rng.random(5) < 0.5
        cpu, row, step, move = rng.uniform(0.2, 2, 4)
        costs = ExpertCosts(
            cpu_expert=cpu, cpu_row=row, cpu_first=0.1, accelerator=step, transfer=move, dense=0
        )
        shortest = fastest(loads, resident, costs).seconds
        seconds = earliest_finish(loads, resident, costs).seconds
        gaps.append(max(0.0, seconds / shortest - 1))  # rounding may say less than the shortest
    return gaps
