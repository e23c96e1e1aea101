"""A planner's plan as tasks of the timeline: which weights are staged when, in steps that follow
each other.

Operators between which nothing is waited for run as one task. A transfer may begin while the step
before it is still running, so three steps are laid out and the one in the middle is what a step of
a loop looks like: what the last one prefetched is there, and it prefetches for the next one.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from llada_jax.phone.timeline import Event, Task, Timeline
from llada_jax.swap.address_plan import Plan
from llada_jax.swap.graph import Graph
from llada_jax.swap.stall_times import waits_of

LAID_OUT = 3
SHOWN = 1
"""Of the steps that are laid out, the one that counts."""


class Stretch(NamedTuple):
    """Neighbouring operators that run as one task."""

    name: str
    share: float
    """Of the body's compute time."""


class PlannedTransfer(NamedTuple):
    """One transfer of every step."""

    name: str
    seconds: float
    copied_bytes: float
    """0 where the bytes stay where they are and are only mapped."""
    feeds: int
    """The stretch that waits for it."""
    after: int | None
    """The stretch that it waits for; None for the start of the step."""
    lag: int
    """Whether that stretch is of the same step (0) or of the one before (1)."""


class PlannedStaging(NamedTuple):
    """What a step's tasks need to know of a plan."""

    stretches: tuple[Stretch, ...]
    transfers: tuple[PlannedTransfer, ...]

    @property
    def seconds(self) -> float:
        """One step's, when nothing hides it."""
        return sum(transfer.seconds for transfer in self.transfers)


def planned_staging(graph: Graph, plan: Plan, *, copies: bool) -> PlannedStaging:
    """A plan with the transfer times of its graph.

    `copies` says whether a transfer moves the bytes, and so draws from memory, or maps them.
    """
    waits = waits_of(graph, plan)
    names = [graph.operators[index].name for index in plan.order]
    edges = {0, len(names), *waits.first, *(after + 1 for after in waits.after)}
    bounds = sorted(edges)
    stretch_at = [number for number, at in enumerate(bounds[1:]) for _ in range(bounds[number], at)]
    stretches = []
    for begin, end in pairwise(bounds):
        compute = sum(graph.operators[index].compute_ns for index in plan.order[begin:end])
        name = names[begin] if end == begin + 1 else f"{names[begin]} to {names[end - 1]}"
        stretches.append(Stretch(name, compute / max(1, graph.compute_ns)))
    transfers = []
    for number, transfer in enumerate(plan.transfers):
        size = sum(graph.operators[index].weight_bytes for index in transfer.operators)
        when_due = not plan.prefetch and waits.lag[number]
        transfers.append(
            PlannedTransfer(
                f"stage {graph.operators[transfer.operators[0]].name}",
                waits.ns[number] / 1e9,
                size if copies else 0,
                stretch_at[waits.first[number]],
                None if when_due else stretch_at[waits.after[number]],
                0 if when_due else waits.lag[number],
            )
        )
    return PlannedStaging(tuple(stretches), tuple(transfers))


class Body(NamedTuple):
    """A forward's work on the NPU, without staging."""

    seconds: float
    dram_bytes: float
    parts: Mapping[str, float]


def steps_tasks(
    planned: PlannedStaging, body: Body, call: Task | None, cpu: tuple[Task, ...]
) -> Iterator[Task]:
    """Equal steps, one after the other; each begins when the one before has its scores.

    Args:
      call: the host's call, where it takes time.
      cpu: tasks of the CPU in each step, the head as the last one.
    """
    for step in range(LAID_OUT):
        scores_before = (_in_step(step - 1, cpu[-1].name),) if step else ()
        if call is not None:
            yield call._replace(name=_in_step(step, call.name), needs=scores_before)
        for transfer in planned.transfers:
            yield _transfer_task(planned, transfer, step, scores_before)
        for number, stretch in enumerate(planned.stretches):
            fed = [each.name for each in planned.transfers if each.feeds == number]
            yield Task(
                _in_step(step, stretch.name),
                "npu",
                body.seconds * stretch.share,
                body.dram_bytes * stretch.share,
                (*(_in_step(step, name) for name in fed), *(scores_before if not number else ())),
                {name: seconds * stretch.share for name, seconds in body.parts.items()},
            )
        for task in cpu:
            needs = (_in_step(step, planned.stretches[-1].name),) if task is cpu[-1] else ()
            yield task._replace(name=_in_step(step, task.name), needs=needs)


def _transfer_task(
    planned: PlannedStaging, transfer: PlannedTransfer, step: int, start: tuple[str, ...]
) -> Task:
    needs: tuple[str, ...] = ()
    if transfer.after is None:
        needs = start
    elif step >= transfer.lag:
        needs = (_in_step(step - transfer.lag, planned.stretches[transfer.after].name),)
    kind = "staging" if transfer.copied_bytes else "mapping"
    return Task(
        _in_step(step, transfer.name),
        "staging",
        transfer.seconds,
        2 * transfer.copied_bytes,  # a copy reads and writes memory
        needs,
        {kind: transfer.seconds},
    )


def _in_step(step: int, name: str) -> str:
    return f"{step}/{name}"


def step_in_a_loop(timeline: Timeline, last: str) -> Timeline:
    """The step in the middle, from 0 on; `last` is the name of the task that ends a step."""
    ends = {event.task.name: event.end for event in timeline.events}
    begin, end = (ends[_in_step(step, last)] for step in (SHOWN - 1, SHOWN))
    return Timeline(
        tuple(
            _clipped(event, begin, end)
            for event in timeline.events
            if event.end > begin and event.start < end
        )
    )


def _clipped(event: Event, begin: float, end: float) -> Event:
    """Its part between two times. A transfer of the step to come says so."""
    step, _, name = event.task.name.partition("/")
    name = f"{name} (for the next step)" if int(step) > SHOWN else name
    start, stop = max(event.start, begin), min(event.end, end)
    return Event(event.task._replace(name=name), start - begin, stop - begin, event.waited)
