"""An event simulation of lanes that share one memory: which task runs when, and what it waited for.

A lane runs its tasks in order, one at a time, each once the tasks it needs are done. A task is a
number of seconds alone, and bytes that it draws from memory meanwhile. Where the tasks that run
together want more than the memory gives, it is shared max-min fairly: who wants less than an equal
share gets it all, the others slow down. No random numbers, no clock: equal tasks, equal timeline.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from llada_jax.config import require

Lane = Literal["npu", "staging", "cpu"]
LANES: tuple[Lane, ...] = ("npu", "staging", "cpu")
_DONE = 1e-12


class LaneTask(NamedTuple):
    """Work of one lane. `needs` are the names of tasks that must be done first."""

    name: str
    lane: Lane
    seconds: float
    dram_bytes: float = 0.0
    needs: tuple[str, ...] = ()
    parts: Mapping[str, float] = {}
    """What the seconds are, for breakdowns; they add up to `seconds`."""

    @property
    def demand(self) -> float:
        """Bytes a second that it draws when it runs alone."""
        return self.dram_bytes / self.seconds if self.seconds else 0.0


class TimedTask(NamedTuple):
    """A task as it ran. `waited` is how long its lane stood idle for it."""

    task: LaneTask
    start: float
    end: float
    waited: float

    @property
    def slowed(self) -> float:
        """Seconds lost to others that drew from memory."""
        return self.end - self.start - self.task.seconds


class Timeline(NamedTuple):
    """Events in the order of their starts."""

    events: tuple[TimedTask, ...]

    @property
    def seconds(self) -> float:
        return max((event.end for event in self.events), default=0.0)


def run(tasks: Sequence[LaneTask], dram_gbps: float) -> Timeline:
    """Simulates when each task runs.

    Raises ValueError for names that repeat or are missing, and for tasks that wait for each other.
    """
    names = [task.name for task in tasks]
    require(len(set(names)) == len(names), "task names repeat; allowed: each once")
    unknown = sorted({need for task in tasks for need in task.needs} - set(names))
    require(not unknown, f"tasks need {unknown}; allowed: names of tasks")
    waiting = {lane: [task for task in tasks if task.lane == lane] for lane in LANES}
    free_since = dict.fromkeys(LANES, 0.0)
    running: dict[Lane, _Running] = {}
    done: set[str] = set()
    events: list[TimedTask] = []
    now = 0.0
    while any(waiting.values()) or running:
        for lane in LANES:
            if lane not in running and waiting[lane] and done.issuperset(waiting[lane][0].needs):
                task = waiting[lane].pop(0)
                running[lane] = _Running(task, now, now - free_since[lane], task.seconds)
        stuck = [queue[0].name for queue in waiting.values() if queue]
        require(bool(running), f"tasks wait for each other: {stuck}")
        speeds = shares({lane: r.task.demand for lane, r in running.items()}, dram_gbps * 1e9)
        step = min(r.left / speeds[lane] for lane, r in running.items())
        now += step
        for lane, r in list(running.items()):
            left = r.left - step * speeds[lane]
            running[lane] = r._replace(left=left)
            if left <= _DONE * max(1.0, r.task.seconds):
                events.append(TimedTask(r.task, r.start, now, r.waited))
                done.add(r.task.name)
                free_since[lane] = now
                del running[lane]
    return Timeline(tuple(sorted(events, key=lambda e: (e.start, LANES.index(e.task.lane)))))


class _Running(NamedTuple):
    task: LaneTask
    start: float
    waited: float
    left: float
    """Seconds of work, at full speed."""


def shares(demands: Mapping[Lane, float], capacity: float) -> dict[Lane, float]:
    """Returns each lane's speed, 1 at the most: what it gets of the memory over what it wants."""
    speeds, left = {}, capacity
    ascending = sorted(demands.items(), key=lambda item: item[1])
    for index, (lane, demand) in enumerate(ascending):
        given = min(demand, left / (len(ascending) - index))
        speeds[lane] = given / demand if demand else 1.0
        left -= given
    return speeds


def breakdown(timeline: Timeline) -> dict[str, float]:
    """Returns where the time goes, as parts of the whole: they add up to `timeline.seconds`.

    The NPU comes first: what it does, then what it waits for (staging that is not hidden, the
    CPU), then what sharing the memory costs.
    """
    on_npu = any(event.task.lane == "npu" for event in timeline.events)
    lead: Lane = "npu" if on_npu else "cpu"
    parts: dict[str, float] = defaultdict(float)
    for event in timeline.events:
        task = event.task
        if task.lane == lead:
            for name, seconds in (task.parts or {task.name: task.seconds}).items():
                parts[name] += seconds
            parts["shared memory"] += event.slowed
    for seconds, busy in stretches(timeline):
        if lead not in busy:
            kinds = (f"{next(iter(busy[lane].task.parts), lane)} (not hidden)" for lane in busy)
            parts[next(kinds, "idle")] += seconds
    return {name: seconds for name, seconds in parts.items() if seconds > _DONE}


def busy_seconds(timeline: Timeline) -> dict[tuple[Lane, ...], float]:
    """Sums seconds by the lanes that are busy together, in order of `LANES`."""
    found: dict[tuple[Lane, ...], float] = defaultdict(float)
    for seconds, busy in stretches(timeline):
        together: tuple[Lane, ...] = tuple(sorted(busy, key=LANES.index))
        found[together] += seconds
    return found


def stretches(timeline: Timeline) -> Iterator[tuple[float, dict[Lane, TimedTask]]]:
    """Yields seconds in which the same tasks run, with these by lane, in order of `LANES`."""
    left: dict[Lane, list[TimedTask]] = {lane: [] for lane in LANES}
    for event in reversed(timeline.events):
        left[event.task.lane].append(event)
    bounds = {0.0, *(time for event in timeline.events for time in (event.start, event.end))}
    for begin, end in pairwise(sorted(bounds)):
        running: dict[Lane, TimedTask] = {}
        for lane, events in left.items():
            while events and events[-1].end <= begin:
                events.pop()
            if events and events[-1].start <= begin:
                running[lane] = events[-1]
        yield end - begin, running
