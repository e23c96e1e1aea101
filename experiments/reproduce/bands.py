"""How far a modelled latency, or the ratio of two, may be off: bands of 95 %."""

import math
from functools import cache, lru_cache

from llada_jax.phone.forward_timer import ForwardTimer
from llada_jax.phone.graphs import graphs_of
from llada_jax.phone.profile import Profile, load_profile
from llada_jax.phone.published_tasks import CANVAS
from llada_jax.phone.system import System
from llada_jax.phone.uncertainty import TWO_SIDED, Moved, moved_profiles, strongest
from llada_jax.phone.workload import Workload

Band = tuple[float, float]


@lru_cache(6)
def _timers(shape: str, soc: str, system: System) -> list[tuple[Moved, ForwardTimer]]:
    """Returns the profile with each number moved."""
    moved = moved_profiles(load_profile(soc), system.uses)
    return [(each, _timer(shape, each.profile, system)) for each in moved]


@cache
def phone_of(shape: str, soc: str, system: System) -> ForwardTimer:
    """Returns what prices forwards of a shape on a phone that is cool, as its profile has it."""
    return _timer(shape, load_profile(soc), system)


def _timer(shape: str, profile: Profile, system: System) -> ForwardTimer:
    return ForwardTimer(graphs_of(shape), profile, system, CANVAS)


def changes_of(shape: str, soc: str, system: System, workload: Workload) -> dict[str, float]:
    """Returns by how much a latency's logarithm moves with each number's doubt."""
    alike = workload.alike()
    base = phone_of(shape, soc, system).latency(alike)
    moved = _timers(shape, soc, system)
    return strongest(base, ((each, timer.latency(alike)) for each, timer in moved))


def band(value: float, *doubts: float) -> Band:
    """Returns 95 % around a value, of independent standard deviations of its logarithm."""
    factor = math.exp(TWO_SIDED * math.hypot(*doubts))
    return value / factor, value * factor
