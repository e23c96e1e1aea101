"""Energy of a timeline: the power of what is busy, times how long.

Power is of the whole phone, measured at the battery while one processor, or both, worked. Published
joules are often idle-subtracted, so both are given.
"""

from typing import NamedTuple

from llada_jax.phone.profile import Power
from llada_jax.phone.timeline import Timeline, busy_seconds


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
    """Returns what a timeline takes from the battery."""
    busy = busy_seconds(timeline)
    watts = {"npu": power.npu_w, "cpu": power.cpu_w, "both": power.both_w, "idle": power.idle_w}
    joules = sum(watts[state] * seconds for state, seconds in busy.items())
    return Energy(joules, joules - power.idle_w * timeline.seconds, timeline.seconds)
