"""One layer's experts on three timelines: the CPU, the accelerator, and the transfers between; and
what an expert costs on each.

Whatever the rule, a plan has one form. The k missing experts of highest load are transferred and
run on the accelerator, the other missing ones run on the CPU, and so do the j resident experts of
lowest load: since the accelerator and the link take equal time for each expert, no other choice of
as many is faster. An expert that is on its way already may run on either side. So the optimum over
all plans is a search over k, j and that side: `fastest`, by which policies are bounded.
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
    """Seconds, for the experts of one model on one machine (arXiv 2504.05897, section III).

    The accelerator takes the same time for an expert whatever its load (up to its row tile), and so
    does moving one; the CPU's time grows linearly with the load.
    """

    cpu_expert: float
    """An expert on the CPU, beside its rows: reading its weights."""
    cpu_row: float
    """Each row of an expert on the CPU."""
    cpu_few_row: float = math.inf
    """Each row with a kernel that reads all weights for every row, taken where it is faster."""
    cpu_first: float
    """What the first expert of a layer on the CPU takes longer: cold caches, waking the threads."""
    accelerator: float
    """An expert on the accelerator."""
    transfer: float
    """Bringing an expert to the accelerator."""
    dense: float
    """The rest of a layer, on the accelerator, before its router is known."""

    def __post_init__(self) -> None:
        few = self.cpu_few_row  # may be infinite: there is no such kernel
        require(few > 0, f"cpu_few_row is {few}; allowed: above 0 seconds")
        require_numbers(self, "accelerator", "transfer", above=0)
        require_numbers(self, "cpu_expert", "cpu_row", "cpu_first", "dense", least=0)

    def cpu(self, loads: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Returns the seconds of experts on the CPU, by their loads."""
        many = self.cpu_expert + self.cpu_row * loads
        return many if math.isinf(self.cpu_few_row) else np.minimum(many, self.cpu_few_row * loads)


class Link(NamedTuple):
    """The transfer timeline as a layer finds it."""

    free: float = 0.0
    """Seconds until a transfer in flight is done."""
    arriving: int | None = None
    """The expert of this layer that it brings; the accelerator may run it once it is there."""


class Schedule(NamedTuple):
    """Who runs a layer's active experts, each in this order, and how long that takes (s)."""

    cpu: list[int]
    accelerator: list[int]
    transferred: list[int]
    seconds: float = 0.0
    """Until CPU and accelerator are done."""
    transfer_seconds: float = 0.0
    """Until the link is free again."""


IDLE = Link()
Scheduler = Callable[..., Schedule]
"""`scheduler(loads, resident, costs, link=IDLE)` of arrays [E]."""


class _OnCpu(NamedTuple):
    """The CPU's seconds for all active experts, by falling load. One that arrives stands apart."""

    resident: Float[np.ndarray, " n"]
    missing: Float[np.ndarray, " n"]
    arriving: Float[np.ndarray, " n"]


class _Split(NamedTuple):
    """A plan: how many missing experts move, and what the CPU takes beside the others."""

    moved: int
    stolen: int
    """Resident experts."""
    takes_arriving: bool = False


def _scheduler(rule: Callable[[_OnCpu, ExpertCosts, Link], _Split]) -> Scheduler:
    """Makes a scheduler of a rule that splits the experts."""

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
        alone = costs.cpu(loads[active])
        by_queue = _OnCpu(*(alone[queue] for queue in queues))
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
    """Gives the next action to the timeline that ends it first, again and again: HybriMoE's rule.

    The accelerator takes experts that are there, highest load first; the CPU takes missing experts,
    lowest load first, and when none is left steals resident ones, lowest load first; the link moves
    missing experts, highest load first (arXiv 2504.05897, section IV-B).
    """
    resident_cpu, missing_cpu = on_cpu.resident.tolist(), on_cpu.missing.tolist()
    step, move = costs.accelerator, costs.transfer
    first, last = 0, len(resident_cpu)  # the accelerator takes from the front, the CPU steals
    moved, left = 0, len(missing_cpu)  # the link takes from the front, the CPU from the back
    waiting = [link.free] * len(on_cpu.arriving)  # when experts on the link arrive
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
    """Takes the plan that ends first, of all; of equals the one with the fewest transfers."""
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
    """Runs what is resident on the accelerator, what is missing on the CPU (kTransformers)."""
    return _Split(0, 0)


@_scheduler
def all_on_accelerator(on_cpu: _OnCpu, costs: ExpertCosts, link: Link) -> _Split:
    """Transfers whatever is missing; the CPU runs nothing (AdapMoE)."""
    return _Split(len(on_cpu.missing), 0)


def _sums_from_the_end(seconds: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n+1"]:
    """Returns the sum of seconds[i:] at entry i."""
    return np.concatenate([np.cumsum(seconds[::-1])[::-1], [0.0]])


def _last_arrival(
    moved: Int[np.ndarray, "*any"], costs: ExpertCosts, link: Link, arriving: int
) -> Float[np.ndarray, "*any"]:
    """Returns when the accelerator is done with what came over the link, if nothing else delays it.

    Of n equal jobs released one after another, either the first release and all n jobs bind, or
    the last release and one job.
    """
    step, move = costs.accelerator, costs.transfer
    ends = np.maximum(link.free + move + moved * step, link.free + moved * move + step)
    ends = np.where(moved > 0, ends, 0.0)
    if arriving:
        ends = np.maximum(ends, link.free + (1 + moved) * step)
    return ends


SCHEDULERS: dict[str, Scheduler] = {
    each.__name__: each for each in (earliest_finish, resident_or_cpu, all_on_accelerator)
}
