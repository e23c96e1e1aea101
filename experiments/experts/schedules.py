"""How good the schedules of single layers are, and how quick the planners."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from experiments.experts.costs import phone_costs
from experiments.experts.phones import TOKENS_PER_STEP
from experiments.harness.results import ResultRow
from experiments.harness.timers import best_of
from llada_jax.experts.cache import visits
from llada_jax.experts.costs import ExpertCosts
from llada_jax.experts.policy import POLICIES
from llada_jax.experts.policy_run import PolicyRun
from llada_jax.experts.schedule import IDLE, SCHEDULERS, Scheduler
from llada_jax.experts.shapes import LLADA2_MINI
from llada_jax.experts.shortest_schedule import shortest_seconds
from llada_jax.experts.synthetic import STATISTICS, denoising_trace

RULES = ("earliest_finish", "fastest")
SMALL_LAYERS = 60


def measure_schedules(seed: int, repeats: int = 200) -> Iterator[ResultRow]:
    """The gap to the shortest plan of small layers, and the time of planning a large one."""
    rng = np.random.default_rng(seed)
    gaps = {rule: _gap(SCHEDULERS[rule], np.random.default_rng(seed)) for rule in RULES}
    for rule, (mean, worst) in gaps.items():
        for name, value in (("mean", mean), ("worst", worst)):
            yield ResultRow(
                name=f"schedule_gap/{rule}/{name}",
                value=value,
                unit="of the shortest plan",
                n=SMALL_LAYERS,
            )
    loads = rng.integers(1, 20, LLADA2_MINI.n_experts)
    resident = rng.random(loads.size) < 0.5
    costs = phone_costs("SM8750", LLADA2_MINI)
    times = {rule: _best_ms(SCHEDULERS[rule], loads, resident, costs, repeats) for rule in RULES}
    for rule, value in times.items():
        yield ResultRow(name=f"schedule_256_experts_ms/{rule}", value=value, unit="ms")
    yield ResultRow(name="schedule_256_experts_ms", value=max(times.values()), unit="ms")
    yield from _planning(seed)


def _planning(seed: int) -> Iterator[ResultRow]:
    """What a policy takes on this machine to decide one layer, all that it decides, and what share
    that is of the layer's modelled time, which has no planning in it. The experts wait for the
    schedule alone; what to keep and to fetch is decided while they run."""
    costs = phone_costs("SM8750", LLADA2_MINI)
    statistics = STATISTICS[LLADA2_MINI.name]
    trace = denoising_trace(
        LLADA2_MINI, statistics, seed=seed, blocks=2, tokens_per_step=TOKENS_PER_STEP
    )
    profile = int(np.flatnonzero(trace.begins_block)[1])
    for name, policy in POLICIES.items():
        run = PolicyRun(policy, costs, LLADA2_MINI.n_experts // 4, trace.loads[:profile])
        coming = [each for step in range(profile, trace.n_steps) for each in visits(trace, step)]
        took = [best_of(partial(run.run_layer, visit))[1] for visit in coming]
        layer = run.seconds / len(coming)
        planning = float(np.median(took))
        yield ResultRow(name=f"planning/{name}/ms_a_layer", value=planning * 1e3, unit="ms")
        yield ResultRow(
            name=f"planning/{name}/of_a_layer",
            value=planning / layer,
            unit="of its modelled time",
            kind="modelled",
        )


def _gap(scheduler: Scheduler, rng: np.random.Generator) -> tuple[float, float]:
    """Mean and worst excess over the optimum, on layers of five experts and random machines."""
    gaps = []
    for _ in range(SMALL_LAYERS):
        loads = rng.integers(1, 9, 5)
        resident = rng.random(5) < 0.5
        cpu, row, step, move = rng.uniform(0.2, 2, 4)
        costs = ExpertCosts(
            cpu_expert=cpu, cpu_row=row, cpu_first=0.1, accelerator=step, transfer=move, dense=0
        )
        shortest = shortest_seconds(loads, resident, costs)
        seconds = scheduler(loads, resident, costs, IDLE).seconds
        gaps.append(max(0.0, seconds / shortest - 1))  # rounding may say less than the shortest
    return float(np.mean(gaps)), float(np.max(gaps))


def _best_ms(
    scheduler: Scheduler,
    loads: np.ndarray,
    resident: np.ndarray,
    costs: ExpertCosts,
    repeats: int,
) -> float:
    return 1e3 * best_of(partial(scheduler, loads, resident, costs, IDLE), repeats)[1]
