"""An event simulation of processors ("lanes") that share the bandwidth of one memory.

A lane runs its tasks in order, one at a time. A task starts when the tasks that it needs are done.
It has a duration, which is its time if it runs alone, and moves a number of bytes from or to memory
at a constant rate. If the running tasks together exceed the bandwidth, it is shared max-min fairly:
tasks below an equal share run at full speed, the others slow down to the rest. The simulation is
deterministic, and steps from one end of a task to the next.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from llada_jax.config import require

Lane = Literal["npu", "staging", "cpu"]
LANES: tuple[Lane, ...] = ("npu", "staging", "cpu")
_TOLERANCE = 1e-12  # seconds: less remaining work than this is rounding error


class LaneTask(NamedTuple):
    """Work of one lane."""

    name: str
    lane: Lane
    seconds: float
    """Duration at full memory speed."""
    dram_bytes: float = 0.0
    needs: tuple[str, ...] = ()
    """Names of the tasks that must end before this one starts."""
    parts: Mapping[str, float] = {}
    """Seconds by part, for breakdowns. They add up to `seconds`."""

    @property
    def demand(self) -> float:
        """Memory traffic at full speed, in bytes per second."""
        return self.dram_bytes / self.seconds if self.seconds else 0.0


class TimedTask(NamedTuple):
    """A simulated task with its times in seconds."""

    task: LaneTask
    start: float
    end: float
    waited: float
    """How long the lane was idle before the task started."""

    @property
    def slowed(self) -> float:
        """Seconds lost because other lanes used the memory."""
        return self.end - self.start - self.task.seconds


class Timeline(NamedTuple):
    """The simulated tasks, ordered by start."""

    events: tuple[TimedTask, ...]

    @property
    def seconds(self) -> float:
        return max((event.end for event in self.events), default=0.0)


def run(tasks: Sequence[LaneTask], dram_gbps: float) -> Timeline:
    """Simulates the tasks.

    Args:
      tasks: the tasks of all lanes. Each lane runs its own in this order.
      dram_gbps: bandwidth of the memory.

    Raises ValueError for repeated or unknown names, and for tasks that wait for each other.
    """
    names = [task.name for task in tasks]
    require(len(set(names)) == len(names), "task names repeat; allowed: each once")
    unknown = sorted({need for task in tasks for need in task.needs} - set(names))
    require(not unknown, f"tasks need {unknown}; allowed: names of tasks")
    queues: dict[Lane, list[LaneTask]] = {
        lane: [task for task in tasks if task.lane == lane] for lane in LANES
    }
    free_since = dict.fromkeys(LANES, 0.0)
    running: dict[Lane, _Running] = {}
    done: set[str] = set()
    events: list[TimedTask] = []
    now = 0.0
    while any(queues.values()) or running:
        for lane, queue in queues.items():
            if lane not in running and queue and done.issuperset(queue[0].needs):
                task = queue.pop(0)
                running[lane] = _Running(task, now, now - free_since[lane], task.seconds)
        blocked = [queue[0].name for queue in queues.values() if queue]
        require(bool(running), f"tasks wait for each other: {blocked}")
        speeds = shares({lane: r.task.demand for lane, r in running.items()}, dram_gbps * 1e9)
        step = min(r.remaining / speeds[lane] for lane, r in running.items())
        now += step
        for lane, r in list(running.items()):
            remaining = r.remaining - step * speeds[lane]
            running[lane] = r._replace(remaining=remaining)
            if remaining <= _TOLERANCE * max(1.0, r.task.seconds):
                events.append(TimedTask(r.task, r.start, now, r.waited))
                done.add(r.task.name)
                free_since[lane] = now
                del running[lane]
    return Timeline(tuple(sorted(events, key=lambda e: (e.start, LANES.index(e.task.lane)))))


class _Running(NamedTuple):
    task: LaneTask
    start: float
    waited: float
    remaining: float
    """Seconds of remaining work at full speed."""


def shares(demands: Mapping[Lane, float], capacity: float) -> dict[Lane, float]:
    """Returns each lane's speed under max-min fair sharing: bandwidth over demand, at most 1.

    From the smallest demand to the largest, each lane gets what it wants or an equal share of the
    bandwidth that is left.
    """
    speeds, free = {}, capacity
    ascending = sorted(demands.items(), key=lambda item: item[1])
    for index, (lane, demand) in enumerate(ascending):
        bandwidth = min(demand, free / (len(ascending) - index))
        speeds[lane] = bandwidth / demand if demand else 1.0
        free -= bandwidth
    return speeds


def breakdown(timeline: Timeline) -> dict[str, float]:
    """Returns seconds by cause, which add up to `timeline.seconds`.

    The causes are seen from the NPU, or from the CPU if the NPU has no task: the parts of its
    tasks, its waits for other lanes ("not hidden"), and its slowdown by shared memory.
    """
    on_npu = any(event.task.lane == "npu" for event in timeline.events)
    main_lane: Lane = "npu" if on_npu else "cpu"
    parts: dict[str, float] = defaultdict(float)
    for event in timeline.events:
        task = event.task
        if task.lane == main_lane:
            for name, seconds in (task.parts or {task.name: task.seconds}).items():
                parts[name] += seconds
            parts["shared memory"] += event.slowed
    for seconds, busy in intervals(timeline):
        if main_lane not in busy:
            causes = (f"{next(iter(busy[lane].task.parts), lane)} (not hidden)" for lane in busy)
            parts[next(causes, "idle")] += seconds
    return {name: seconds for name, seconds in parts.items() if seconds > _TOLERANCE}


def busy_seconds(timeline: Timeline) -> dict[tuple[Lane, ...], float]:
    """Returns seconds by the set of lanes that are busy at once, each set in order of `LANES`."""
    totals: dict[tuple[Lane, ...], float] = defaultdict(float)
    for seconds, busy in intervals(timeline):
        totals[tuple(busy)] += seconds
    return totals


def intervals(timeline: Timeline) -> Iterator[tuple[float, dict[Lane, TimedTask]]]:
    """Yields the seconds between consecutive events, with the running tasks by lane.

    The lanes are in order of `LANES`.
    """
    upcoming: dict[Lane, list[TimedTask]] = {lane: [] for lane in LANES}
    for event in reversed(timeline.events):
        upcoming[event.task.lane].append(event)
    bounds = {0.0, *(time for event in timeline.events for time in (event.start, event.end))}
    for begin, end in pairwise(sorted(bounds)):
        running: dict[Lane, TimedTask] = {}
        for lane, events in upcoming.items():
            while events and events[-1].end <= begin:
                events.pop()
            if events and events[-1].start <= begin:
                running[lane] = events[-1]
        yield end - begin, running
