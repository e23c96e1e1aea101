"""How far a modelled latency, or the ratio of two, may be off: bands of 95 %."""

import math
from functools import lru_cache

from llada_jax.phone.forward_timer import ForwardTimer
from llada_jax.phone.graphs import graphs_of
from llada_jax.phone.profile import load_profile
from llada_jax.phone.published_tasks import CANVAS
from llada_jax.phone.system import System
from llada_jax.phone.uncertainty import TWO_SIDED, Moved, moved_profiles, strongest
from llada_jax.phone.workload import Workload

Band = tuple[float, float]


@lru_cache(6)
def _timers(shape: str, soc: str, system: System) -> list[tuple[Moved, ForwardTimer]]:
    """Returns the profile as it is, then with each number moved."""
    profile, graphs = load_profile(soc), graphs_of(shape)
    moved = [Moved("", profile, 1.0), *moved_profiles(profile, system.uses)]
    return [(each, ForwardTimer(graphs, each.profile, system, CANVAS)) for each in moved]


def changes_of(shape: str, soc: str, system: System, workload: Workload) -> dict[str, float]:
    """Returns by how much a latency's logarithm moves with each number's doubt."""
    alike = workload.alike()
    (_, timer), *moved = _timers(shape, soc, system)
    return strongest(timer.latency(alike), ((each, t.latency(alike)) for each, t in moved))


def band(value: float, *doubts: float) -> Band:
    """Returns 95 % around a value, of independent standard deviations of its logarithm."""
    factor = math.exp(TWO_SIDED * math.hypot(*doubts))
    return value / factor, value * factor
