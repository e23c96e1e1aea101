"""A step as tasks of the timeline: the body, what it waits for, and what the CPU does.

A transfer of a plan may begin while the step before it is still running. Then three steps are laid
out, and the one in the middle is what a step of a loop looks like: what the last one prefetched is
there, and it prefetches for the next one.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from llada_jax.phone.timeline import LaneTask, TimedTask, Timeline, run
from llada_jax.phone.transfers import Stretch, WeightTransfer, WeightTransfers

LAID_OUT = 3
SHOWN = 1
"""Of the steps that are laid out, the one that counts."""


class StepWork(NamedTuple):
    """A forward's tasks, without transfers; `needs` are filled in."""

    layers: Sequence[LaneTask]
    beside: Sequence[LaneTask]
    """The CPU's revision, where there is one, and the head last, after the body."""
    call: LaneTask | None = None
    """The host's call, where it takes time."""


def run_step(work: StepWork, transfers: WeightTransfers, dram_gbps: float) -> Timeline:
    """Lays a step out and runs it; as a step in a loop, where transfers reach across steps."""
    if not transfers.stretches:
        return run(list(_step_tasks(work, transfers.transfers)), dram_gbps)
    work = work._replace(layers=_stretched(work.layers, transfers.stretches))
    last = work.beside[-1].name
    tasks = [
        task
        for step in range(LAID_OUT)
        for task in _step_tasks(work, transfers.transfers, step, (last,) if step else ())
    ]
    return _step_in_a_loop(run(tasks, dram_gbps), last)


def _stretched(layers: Sequence[LaneTask], stretches: Sequence[Stretch]) -> Sequence[LaneTask]:
    """Returns the body as the stretches that transfers know, by their shares of its time."""
    seconds = math.fsum(layer.seconds for layer in layers)
    dram_bytes = math.fsum(layer.dram_bytes for layer in layers)
    names = dict.fromkeys(name for layer in layers for name in layer.parts)
    parts = {name: math.fsum(layer.parts.get(name, 0.0) for layer in layers) for name in names}
    return [
        LaneTask(
            stretch.name,
            "npu",
            seconds * stretch.share,
            dram_bytes * stretch.share,
            parts={name: value * stretch.share for name, value in parts.items()},
        )
        for stretch in stretches
    ]


def _step_tasks(
    work: StepWork,
    transfers: Sequence[WeightTransfer],
    step: int | None = None,
    begins_after: Sequence[str] = (),
) -> Iterator[LaneTask]:
    """Yields one step's tasks.

    Args:
      step: its number among those that are laid out; None where it is the only one.
      begins_after: tasks of the step before that must be done when this one begins.
    """

    def named(name: str, back: int = 0) -> str:
        return name if step is None else f"{step - back}/{name}"

    start = tuple(named(name, 1) for name in begins_after)
    if work.call is not None:
        yield work.call._replace(name=named(work.call.name), needs=start)
    fed: dict[int, list[str]] = {}
    for each in transfers:
        fed.setdefault(each.feeds, []).append(named(each.name))
        needs = start
        if each.after is not None:
            before = step is not None and each.lag > step
            needs = () if before else (named(work.layers[each.after].name, each.lag),)
        kind = "staging" if each.copied_bytes else "mapping"
        drawn = 2 * each.copied_bytes  # a copy reads and writes memory
        yield LaneTask(
            named(each.name), "staging", each.seconds, drawn, needs, {kind: each.seconds}
        )
    for number, task in enumerate(work.layers):
        needs = (*fed.get(number, ()), *(start if not number else ()))
        yield task._replace(name=named(task.name), needs=needs)
    for task in work.beside:
        needs = (named(work.layers[-1].name),) if task.name == "head" else ()
        yield task._replace(name=named(task.name), needs=needs)


def _step_in_a_loop(timeline: Timeline, last: str) -> Timeline:
    """Returns the step in the middle, from 0 on; `last` is the task that ends a step."""
    ends = {event.task.name: event.end for event in timeline.events}
    begin, end = (ends[f"{step}/{last}"] for step in (SHOWN - 1, SHOWN))
    events = []
    for task, start, stop, waited in timeline.events:
        if stop > begin and start < end:
            step, _, name = task.name.partition("/")
            name += " (for the next step)" if int(step) > SHOWN else ""
            start, stop = max(start, begin) - begin, min(stop, end) - begin
            events.append(TimedTask(task._replace(name=name), start, stop, waited))
    return Timeline(tuple(events))
