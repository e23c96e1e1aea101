"""How far a modelled latency, or the ratio of two, may be off: bands of 95 %."""

import math
from functools import lru_cache

from llada_jax.phone.forward_timer import ForwardTimer
from llada_jax.phone.graphs import graphs_of
from llada_jax.phone.profile import load_profile
from llada_jax.phone.published_tasks import CANVAS
from llada_jax.phone.system import System
from llada_jax.phone.uncertainty import TWO_SIDED, moved_profiles
from llada_jax.phone.workload import Workload

Band = tuple[float, float]


@lru_cache(6)
def _timers(shape: str, soc: str, system: System) -> dict[str, list[tuple[float, ForwardTimer]]]:
    """By the number that is moved; under "" stands the profile as it is."""
    profile, graphs = load_profile(soc), graphs_of(shape)
    found = {"": [(1.0, ForwardTimer(graphs, profile, system, CANVAS))]}
    for number, moved, deviations in moved_profiles(profile, system.uses):
        timer = ForwardTimer(graphs, moved, system, CANVAS)
        found.setdefault(number, []).append((deviations, timer))
    return found


def changes_of(shape: str, soc: str, system: System, workload: Workload) -> dict[str, float]:
    """Returns by how much a latency's logarithm moves with each number's doubt."""
    alike, timers = workload.alike(), _timers(shape, soc, system)
    base = timers[""][0][1].latency(alike)
    moved = {
        number: [math.log(timer.latency(alike) / base) / deviations for deviations, timer in each]
        for number, each in timers.items()
        if number
    }
    return {number: max(each, key=abs) for number, each in moved.items()}


def band(value: float, *doubts: float) -> Band:
    """Returns 95 % around a value, of independent standard deviations of its logarithm."""
    factor = math.exp(TWO_SIDED * math.hypot(*doubts))
    return value / factor, value * factor
