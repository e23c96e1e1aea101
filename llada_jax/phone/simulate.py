"""A decoding run on a phone: the times and energies of its forwards, summed.

The step is the unit: the CPU's revisions are merged at its end (the paper's delayed merge), so no
lane reaches into the next one. Equal forwards therefore take equal time and are simulated once.
Power is of the whole phone, measured at the battery while one processor, or both, worked. Published
joules are often idle-subtracted, so both are given.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llada_jax.phone.forward_timer import ForwardTimer
from llada_jax.phone.profile import Power
from llada_jax.phone.routed_layers import ASSUMED
from llada_jax.phone.timeline import Lane, TimedTask, Timeline, breakdown, busy_seconds
from llada_jax.phone.workload import Forward, Workload


class Energy(NamedTuple):
    """Joules of the whole phone, and what is left without its idle power."""

    joules: float = 0.0
    above_idle: float = 0.0
    seconds: float = 0.0

    @property
    def watts(self) -> float:
        """On average; 0 for nothing."""
        return self.joules / self.seconds if self.seconds else 0.0


def energy_of(timeline: Timeline, power: Power) -> Energy:
    """Returns what a timeline takes from the battery, by what runs; staging keeps one core busy."""
    lanes = busy_seconds(timeline).items()
    joules = math.fsum(seconds * watts(busy, power) for busy, seconds in lanes)
    return Energy(joules, joules - power.idle_w * timeline.seconds, timeline.seconds)


def watts(busy: Sequence[Lane], power: Power) -> float:
    """Returns what a phone takes while these lanes are busy."""
    staging = power.core_w * ("staging" in busy)
    if "npu" in busy:
        return power.both_w if "cpu" in busy else power.npu_w + staging
    return power.cpu_w if "cpu" in busy else power.idle_w + staging


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A run on a phone: all numbers are modelled."""

    workload: Workload
    parts: dict[str, float]
    """Where the seconds go; they add up to `seconds`."""
    energy: Energy
    """Joules of the whole phone, and those above its idle power."""
    steps: dict[Forward, Timeline]
    """Each kind of forward alone."""
    source: str
    """What the numbers rest on: where the forwards come from, and which experts they take."""
    experts_per_layer: float | None
    """Different experts that a routed layer runs in a forward, on average; None without experts."""

    @property
    def seconds(self) -> float:
        """Latency of the run."""
        return self.energy.seconds

    def timeline(self, first: int = 0, last: int | None = None) -> Timeline:
        """Returns the events of some forwards, one after the other; the first one starts at 0."""
        events, now = [], 0.0
        for index, forward in list(enumerate(self.workload.forwards))[first:last]:
            step = self.steps[forward]
            for task, start, end, waited in step.events:
                names = [f"{name}, step {index}" for name in (task.name, *task.needs)]
                task = task._replace(name=names[0], needs=tuple(names[1:]))
                events.append(TimedTask(task, start + now, end + now, waited))
            now += step.seconds
        return Timeline(tuple(events))


def simulate(workload: Workload, timer: ForwardTimer, slowdown: float = 1.0) -> Simulated:
    """Returns latency, breakdown and energy of a run: sums over its forwards.

    `slowdown`: by how much the phone's session slows the run. It does the same work with less
    power: the joules above the idle ones stay.
    """
    counts = Counter(workload.forwards)
    steps = {forward: timer.step(forward) for forward in counts}
    experts = timer.experts_per_layer(workload)
    parts: dict[str, float] = {}
    energies = []
    for forward, count in counts.items():
        for name, seconds in breakdown(steps[forward]).items():
            parts[name] = parts.get(name, 0.0) + count * seconds
        energies.append([count * each for each in energy_of(steps[forward], timer.profile.power)])
    energy = Energy(*map(math.fsum, zip(*energies, strict=True)))
    if lost := (slowdown - 1) * energy.seconds:
        parts["session"] = lost
        joules = energy.joules + lost * timer.profile.power.idle_w
        energy = Energy(joules, energy.above_idle, energy.seconds + lost)
    source = workload.source + ("" if experts is None else f"; {ASSUMED}")
    return Simulated(workload=workload, parts=parts, energy=energy, steps=steps, source=source,
                     experts_per_layer=experts)  # fmt: skip
