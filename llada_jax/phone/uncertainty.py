"""How sure a modelled latency is: each number's own doubt, carried through the simulation."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from llada_jax.phone.profile import Profile, Tag

DOUBT: Mapping[Tag, float] = {"measured": 0.05, "derived": 0.10, "vendor": 0.15, "inferred": 0.30}
"""Assumed relative standard deviation of a number, by how it is known."""

COUNTED = ("rows", "bits", "MiB", "-")
"""Units of numbers that are facts of a library or a chip, in whole steps: they are left alone."""


class UncertainLatency(NamedTuple):
    """A latency, and one standard deviation to each side."""

    seconds: float
    deviation: float
    largest: tuple[tuple[str, float], ...]
    """The numbers that it depends on most, each with the seconds that its doubt is worth."""

    @property
    def bounds(self) -> tuple[float, float]:
        """95 % interval, in seconds."""
        spread = 1.96 * self.deviation
        return max(0.0, self.seconds - spread), self.seconds + spread

    @property
    def relative(self) -> float:
        return self.deviation / self.seconds if self.seconds else 0.0


def with_uncertainty(profile: Profile, latency: Callable[[Profile], float]) -> UncertainLatency:
    """Moves each number of the profile by its doubt, alone, and adds the changes in quadrature.

    What the model leaves out is not in it: compare with the errors of the reproduction.
    """
    base = latency(profile)
    moved = {
        path: profile.with_values({path: entry.value * (1 + DOUBT[entry.tag])})
        for path, entry in profile.numbers.items()
        if entry.unit not in COUNTED and entry.value
    }
    changes = {path: abs(latency(each) - base) for path, each in moved.items()}
    largest = sorted(changes.items(), key=lambda item: -item[1])[:5]
    deviation = math.sqrt(sum(change**2 for change in changes.values()))
    return UncertainLatency(base, deviation, tuple(each for each in largest if each[1] > 0))
