"""An event simulation of lanes that share one memory: which task runs when, and what it waited for.

A lane runs its tasks in order, one at a time, each once the tasks it needs are done. A task is a
number of seconds alone, and bytes that it draws from memory meanwhile. Where the tasks that run
together want more than the memory gives, it is shared max-min fairly: who wants less than an equal
share gets it all, the others slow down. No random numbers, no clock: equal tasks, equal timeline.
"""

from collections.abc import Mapping, Sequence
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

    def shifted(self, by: float) -> "Timeline":
        """Returns the same, later."""
        return Timeline(tuple(e._replace(start=e.start + by, end=e.end + by) for e in self.events))


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
        require(
            bool(running),
            f"tasks wait for each other: {[q[0].name for q in waiting.values() if q]}",
        )
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
    parts: dict[str, float] = {}

    def add(name: str, seconds: float) -> None:
        if seconds > _DONE:
            parts[name] = parts.get(name, 0.0) + seconds

    first: dict[Lane, list[TimedTask]] = {lane: _of(timeline, lane) for lane in LANES}
    lead: Lane = "npu" if first["npu"] else "cpu"
    for event in first[lead]:
        for name, seconds in (event.task.parts or {event.task.name: event.task.seconds}).items():
            add(name, seconds)
        add("shared memory", event.slowed)
    busy = [(event.start, event.end) for event in first[lead]]
    for lane in LANES:
        if lane != lead:
            for event in first[lane]:
                kind = next(iter(event.task.parts), lane)
                add(f"{kind} (not hidden)", _uncovered(event.start, event.end, busy))
                busy = _merged([*busy, (event.start, event.end)])
    add("idle", timeline.seconds - sum(end - start for start, end in _merged(busy)))
    return parts


def _of(timeline: Timeline, lane: Lane) -> list[TimedTask]:
    return [event for event in timeline.events if event.task.lane == lane]


def _merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def _uncovered(start: float, end: float, spans: list[tuple[float, float]]) -> float:
    covered = sum(max(0.0, min(end, e) - max(start, s)) for s, e in _merged(spans))
    return end - start - covered


def busy_seconds(timeline: Timeline) -> dict[str, float]:
    """Sums seconds by what is busy: `npu`, `cpu`, `both`, `idle`; staging keeps a CPU core busy."""
    npu = _merged([(e.start, e.end) for e in _of(timeline, "npu")])
    host = [(e.start, e.end) for lane in ("cpu", "staging") for e in _of(timeline, lane)]
    host = _merged(host)
    npu_s, host_s = (sum(end - start for start, end in spans) for spans in (npu, host))
    both = sum(max(0.0, min(e, f) - max(s, b)) for s, e in npu for b, f in host)
    idle = timeline.seconds - (npu_s + host_s - both)
    return {"npu": npu_s - both, "cpu": host_s - both, "both": both, "idle": max(0.0, idle)}
