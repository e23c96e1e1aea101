"""How good and how quick the schedules of single layers are."""

import time
from collections.abc import Iterator

import numpy as np

from experiments.experts_costs import phone_costs
from experiments.results import ResultRow
from llada_jax.experts.costs import ExpertCosts
from llada_jax.experts.exact import shortest_seconds
from llada_jax.experts.schedule import IDLE, SCHEDULERS, Scheduler
from llada_jax.experts.shapes import LLADA2_MINI

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
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        scheduler(loads, resident, costs, IDLE)
        best = min(best, time.perf_counter() - began)
    return best * 1e3
