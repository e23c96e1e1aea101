"""How sure a modelled latency is: each number's own doubt, and the phone's state, carried on."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from llada_jax.phones.profile import Profile, SourcedNumber, Tag

DOUBT: Mapping[Tag, float] = {"measured": 0.05, "derived": 0.10, "vendor": 0.15, "inferred": 0.30}
"""Assumed relative standard deviation of a number, by how it is known."""
COUNTED = ("rows", "bits", "MiB", "-", "times", "ln")
"""Units of numbers that are left alone: facts of a library or a chip, and the session's own."""
CLIFFS = {"memory.buffer_mib": 0.20}
"""Sizes in whole steps, where a small change may cost much: 95 % of the doubt, to either side."""
POWER_SPREAD = 0.42
"""Of the logarithm of watts: phones whose NPU was busy took 2.2 (arXiv 2501.14794), 4.3 (arXiv
2509.23324) and 4.9 W (arXiv 2511.11248)."""
TWO_SIDED = 1.96
"""Standard deviations that 95 % lie within, to either side."""


class Moved(NamedTuple):
    """A profile with one number moved, and by how many standard deviations of its doubt."""

    number: str
    profile: Profile
    deviations: float


class UncertainLatency(NamedTuple):
    """A latency, and one standard deviation to each side."""

    seconds: float
    relative: float
    """Standard deviation of its logarithm."""
    largest: tuple[tuple[str, float], ...]
    """The numbers that it depends on most, each with the seconds that its doubt is worth."""

    @property
    def bounds(self) -> tuple[float, float]:
        """95 % interval, in seconds: as far above, as a factor, as below."""
        factor = math.exp(TWO_SIDED * self.relative)
        return self.seconds / factor, self.seconds * factor


def doubt_of(entry: SourcedNumber) -> float:
    """Returns the standard deviation of a number's logarithm."""
    return math.log(1 + DOUBT[entry.tag]) if entry.doubt is None else entry.doubt


def moved_profiles(profile: Profile, matters: Callable[[str], bool] = bool) -> list[Moved]:
    """Returns the profile with each number that matters moved by its doubt, alone."""
    found = []
    for path, entry in profile.numbers.items():
        if not entry.value or not matters(path):
            continue
        if path in CLIFFS:
            for change in (CLIFFS[path], -CLIFFS[path]):
                values = {path: entry.value * (1 + change)}
                found.append(Moved(path, profile.with_values(values), TWO_SIDED))
        elif entry.unit not in COUNTED:
            values = {path: entry.value * math.exp(doubt_of(entry))}
            found.append(Moved(path, profile.with_values(values), 1.0))
    return found


def strongest(base: float, moved: Iterable[tuple[Moved, float]]) -> dict[str, float]:
    """Returns by how much the logarithm of `base` seconds moves with each number's doubt, from the
    seconds with it moved; of several moves of one number, the strongest."""
    changes: dict[str, float] = {}
    for (number, _, deviations), seconds in moved:
        change = math.log(seconds / base) / deviations
        changes[number] = max(change, changes.get(number, 0.0), key=abs)
    return changes


def with_uncertainty(
    profile: Profile,
    latency: Callable[[Profile], float],
    matters: Callable[[str], bool] = bool,
    spread: float = 0.0,
) -> UncertainLatency:
    """Moves each number that matters by its doubt, alone, and adds the changes in quadrature, and
    a spread that no number holds, as the session's: the standard deviation of a logarithm."""
    base, moved = latency(profile), moved_profiles(profile, matters)
    changes = strongest(base, ((each, latency(each.profile)) for each in moved))
    worth = ((number, base * abs(change)) for number, change in changes.items() if change)
    largest = tuple(sorted(worth, key=lambda each: -each[1])[:5])
    return UncertainLatency(base, math.hypot(spread, *changes.values()), largest)
