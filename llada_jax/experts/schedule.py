"""Schedules one layer's experts on three timelines: CPU, accelerator, and the transfers between.

Every plan has the same form. The k missing experts of highest load are transferred and run on the
accelerator. The CPU runs the other missing experts, and the j resident experts of lowest load.
Since the accelerator and the link take equal time for each expert, no other choice of k and j
experts is faster. An expert in transit may run on either side. So the optimum over all plans is a
search over k, j and that side (`fastest`), which bounds all policies.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from llada_jax.config import require, require_numbers


@dataclass(frozen=True, kw_only=True)
class ExpertCosts:
    """Times in seconds for the experts of one model on one machine (arXiv 2504.05897, III).

    The accelerator's time for an expert does not depend on its load (up to its row tile), nor does
    a transfer; the CPU's time grows linearly with the load.
    """

    cpu_expert: float
    """Fixed time of an expert on the CPU: reading its weights."""
    cpu_row: float
    """Additional time of each row of an expert on the CPU."""
    cpu_few_row: float = math.inf
    """Time of each row with a kernel that reads all weights for every row, used if it is faster."""
    cpu_first: float
    """Additional time of the first expert of a layer on the CPU: cold caches, waking threads."""
    accelerator: float
    """Time of an expert on the accelerator."""
    transfer: float
    """Time to transfer an expert to the accelerator."""
    dense: float
    """Time of the rest of a layer, on the accelerator, before its routing is known."""

    def __post_init__(self) -> None:
        few = self.cpu_few_row  # infinite if there is no such kernel
        require(few > 0, f"cpu_few_row is {few}; allowed: above 0 seconds")
        require_numbers(self, "accelerator", "transfer", above=0)
        require_numbers(self, "cpu_expert", "cpu_row", "cpu_first", "dense", least=0)

    def cpu(self, loads: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Returns the time of experts on the CPU by their loads."""
        many = self.cpu_expert + self.cpu_row * loads
        return many if math.isinf(self.cpu_few_row) else np.minimum(many, self.cpu_few_row * loads)


class Link(NamedTuple):
    """The state of the link at the beginning of a layer."""

    free: float = 0.0
    """Seconds until the transfer in flight is complete."""
    arriving: int | None = None
    """The expert of this layer in flight; the accelerator can run it after its arrival."""


class Schedule(NamedTuple):
    """The experts run by each processor, in order, and the durations in seconds."""

    cpu: list[int]
    accelerator: list[int]
    transferred: list[int]
    seconds: float = 0.0
    """Time until CPU and accelerator are done."""
    transfer_seconds: float = 0.0
    """Time until the link is free again."""


IDLE = Link()
Scheduler = Callable[..., Schedule]
"""`scheduler(loads, resident, costs, link=IDLE)` of arrays [E]."""


class _OnCpu(NamedTuple):
    """The CPU's time for each active expert, by descending load, in three disjoint groups."""

    resident: Float[np.ndarray, " n"]
    missing: Float[np.ndarray, " n"]
    arriving: Float[np.ndarray, " n"]


class _Split(NamedTuple):
    """A plan: number of missing experts to transfer, and of other experts that the CPU runs."""

    moved: int
    stolen: int
    """Number of resident experts that the CPU runs."""
    takes_arriving: bool = False
    """Whether the CPU runs the expert in transit."""


def _scheduler(rule: Callable[[_OnCpu, ExpertCosts, Link], _Split]) -> Scheduler:
    """Makes a scheduler from a rule that returns a plan."""

    @wraps(rule)
    def schedule(
        loads: Int[np.ndarray, " E"],
        resident: Bool[np.ndarray, " E"],
        costs: ExpertCosts,
        link: Link = IDLE,
    ) -> Schedule:
        active = np.flatnonzero(loads)
        active = active[np.argsort(-loads[active], kind="stable")]
        arrives = active == (-1 if link.arriving is None else link.arriving)
        queues = resident[active] & ~arrives, ~(resident[active] | arrives), arrives
        here, missing, arriving = (active[queue].tolist() for queue in queues)
        cpu_seconds = costs.cpu(loads[active])
        by_queue = _OnCpu(*(cpu_seconds[queue] for queue in queues))
        moved, stolen, takes_arriving = rule(by_queue, costs, link)
        kept = len(here) - stolen
        taken, waits = (arriving, []) if takes_arriving else ([], arriving)
        cpu = missing[moved:][::-1] + taken + here[kept:][::-1]
        transferred = missing[:moved]
        accelerator = here[:kept] + waits + transferred
        on_cpu = float(by_queue.missing[moved:].sum() + by_queue.resident[kept:].sum())
        on_cpu += float(by_queue.arriving.sum()) * takes_arriving
        on_cpu += costs.cpu_first if cpu else 0.0
        last_arrival = float(_last_arrival(np.asarray(moved), costs, link, len(waits)))
        seconds = max(on_cpu, len(accelerator) * costs.accelerator, last_arrival)
        return Schedule(cpu, accelerator, transferred, seconds, link.free + moved * costs.transfer)

    return schedule


@_scheduler
def earliest_finish(on_cpu: _OnCpu, costs: ExpertCosts, link: Link) -> _Split:
    """Repeatedly gives the next action to the timeline that would finish it first: HybriMoE's rule.

    The accelerator takes available experts, highest load first; the CPU takes missing experts,
    lowest load first, and then resident ones, lowest load first; the link transfers missing
    experts, highest load first (arXiv 2504.05897, section IV-B).
    """
    resident_cpu, missing_cpu = on_cpu.resident.tolist(), on_cpu.missing.tolist()
    step, move = costs.accelerator, costs.transfer
    first, last = 0, len(resident_cpu)  # the accelerator takes from the front, the CPU steals
    moved, left = 0, len(missing_cpu)  # the link takes from the front, the CPU from the back
    waiting = [link.free] * len(on_cpu.arriving)  # arrival times of transferred experts
    fetched = 0
    accelerator, cpu, link_end = 0.0, costs.cpu_first, link.free
    never = float("inf")
    while True:
        here = first < last
        takes_fetched = fetched < len(waiting) and (not here or waiting[fetched] <= accelerator)
        if takes_fetched:
            by_accelerator = max(accelerator, waiting[fetched]) + step
        else:
            by_accelerator = accelerator + step if here else never
        if moved < left:
            by_cpu, by_link = cpu + missing_cpu[left - 1], link_end + move
        else:
            by_cpu, by_link = cpu + resident_cpu[last - 1] if here else never, never
        if by_accelerator <= by_cpu and by_accelerator <= by_link:
            if by_accelerator == never:
                break
            accelerator = by_accelerator
            fetched += takes_fetched
            first += not takes_fetched
        elif by_cpu <= by_link:
            cpu = by_cpu
            if moved < left:
                left -= 1
            else:
                last -= 1
        else:
            link_end = by_link
            waiting.append(by_link)
            moved += 1
    return _Split(moved, len(resident_cpu) - last)


@_scheduler
def fastest(on_cpu: _OnCpu, costs: ExpertCosts, link: Link) -> _Split:
    """Returns the plan that ends first; among equal ones the plan with the fewest transfers."""
    n_missing, n_resident = len(on_cpu.missing), len(on_cpu.resident)
    moved, stolen = np.arange(n_missing + 1)[:, None], np.arange(n_resident + 1)
    beside = _sums_from_the_end(on_cpu.missing)[:, None] + _sums_from_the_end(on_cpu.resident)[::-1]
    ends = []
    for taken in range(len(on_cpu.arriving) + 1):
        cpu = beside + on_cpu.arriving.sum() * taken
        cpu += np.where((moved < n_missing) | (stolen > 0) | (taken > 0), costs.cpu_first, 0.0)
        waits = len(on_cpu.arriving) - taken
        accelerator = (n_resident - stolen + moved + waits) * costs.accelerator
        accelerator = np.maximum(accelerator, _last_arrival(moved, costs, link, waits))
        ends.append(np.maximum(cpu, accelerator))
    best = np.unravel_index(np.argmin(np.stack(ends, axis=-1)), (*beside.shape, len(ends)))
    return _Split(int(best[0]), int(best[1]), bool(best[2]))


@_scheduler
def resident_or_cpu(on_cpu: _OnCpu, costs: ExpertCosts, link: Link) -> _Split:
    """Runs resident experts on the accelerator, missing ones on the CPU (kTransformers)."""
    return _Split(0, 0)


@_scheduler
def all_on_accelerator(on_cpu: _OnCpu, costs: ExpertCosts, link: Link) -> _Split:
    """Transfers all missing experts; the CPU runs nothing (AdapMoE)."""
    return _Split(len(on_cpu.missing), 0)


def _sums_from_the_end(seconds: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n+1"]:
    """Returns the sum of seconds[i:] at entry i."""
    return np.concatenate([np.cumsum(seconds[::-1])[::-1], [0.0]])


def _last_arrival(
    moved: Int[np.ndarray, "*any"], costs: ExpertCosts, link: Link, arriving: int
) -> Float[np.ndarray, "*any"]:
    """Returns the earliest end of the transferred experts on the accelerator.

    For n equal jobs that are released one after another, the end is determined either by the first
    release and all n jobs, or by the last release and one job.
    """
    step, move = costs.accelerator, costs.transfer
    ends = np.maximum(link.free + move + moved * step, link.free + moved * move + step)
    ends = np.where(moved > 0, ends, 0.0)
    if arriving:
        ends = np.maximum(ends, link.free + (1 + moved) * step)
    return ends


SCHEDULERS: dict[str, Scheduler] = {
    rule.__name__: rule for rule in (earliest_finish, resident_or_cpu, all_on_accelerator)
}
