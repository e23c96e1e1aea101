"""Uncertainty of a modelled latency, propagated from the doubts of a profile's numbers.

Each number is shifted by its doubt, one standard deviation of its logarithm, and the latency is
computed again. The changes of the latency's logarithm are independent and add in quadrature. The
state of the phone (heat, power settings) is not a shifted number: it is added as a spread.

Doubts that the profile does not contain follow from the tag of the number. These defaults are
assumptions; `experiments.reproduce` counts how many published figures the intervals contain.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import cache, partial
from typing import Any, NamedTuple

from llada_jax.phones.profile import COOL, Profile, Session, SourcedNumber, Tag

DOUBT: Mapping[Tag, float] = {"measured": 0.05, "derived": 0.10, "vendor": 0.15, "inferred": 0.30}
"""Assumed relative standard deviation of a number, by its tag."""
COUNTED = ("rows", "bits", "MiB", "-", "times", "ln")
"""Units of numbers without doubt: facts of a library or a chip, and the session's numbers, which
enter as the spread."""
CLIFFS = {"memory.buffer_mib": 0.20}
"""Relative shift, in both directions, of sizes at which the latency jumps. A shift of one standard
deviation can miss a jump, so these are shifted to the ends of their 95 % interval."""
POWER_SPREAD = 0.42
"""Standard deviation of the logarithm of watts. Phones with a busy NPU took 2.2 W (arXiv
2501.14794), 4.3 W (arXiv 2509.23324) and 4.9 W (arXiv 2511.11248)."""
TWO_SIDED = 1.96
"""Standard deviations from the mean to either end of a 95 % interval."""


class ShiftedProfile(NamedTuple):
    """A profile with one number shifted, and the size of the shift in standard deviations."""

    number: str
    profile: Profile
    deviations: float


class UncertainLatency(NamedTuple):
    """A latency with its uncertainty."""

    seconds: float
    relative: float
    """Standard deviation of the logarithm."""
    largest: tuple[tuple[str, float], ...]
    """The five numbers with the largest effect, each with the seconds that its doubt causes."""

    @property
    def bounds(self) -> tuple[float, float]:
        """95 % interval in seconds, symmetric as a factor."""
        factor = math.exp(TWO_SIDED * self.relative)
        return self.seconds / factor, self.seconds * factor


def doubt_of(number: SourcedNumber) -> float:
    """Returns the standard deviation of a number's logarithm."""
    return math.log(1 + DOUBT[number.tag]) if number.doubt is None else number.doubt


def shifted_profiles(
    profile: Profile, matters: Callable[[str], bool] = bool
) -> list[ShiftedProfile]:
    """Returns one profile for each number with a doubt, in which only this number is shifted.

    Args:
      matters: whether a number, by its path, can change the result. Others are skipped.
    """
    shifted = []
    for path, number in profile.numbers.items():
        if not number.value or not matters(path):
            continue
        if path in CLIFFS:
            for change in (CLIFFS[path], -CLIFFS[path]):
                values = {path: number.value * (1 + change)}
                shifted.append(ShiftedProfile(path, profile.with_values(values), TWO_SIDED))
        elif number.unit not in COUNTED:
            values = {path: number.value * math.exp(doubt_of(number))}
            shifted.append(ShiftedProfile(path, profile.with_values(values), 1.0))
    return shifted


def log_changes(base: float, shifted: Iterable[tuple[ShiftedProfile, float]]) -> dict[str, float]:
    """Returns the change of a latency's logarithm per standard deviation of each number.

    Args:
      base: the latency of the profile in seconds.
      shifted: shifted profiles with their latencies. Of several shifts of one number, the largest
        change counts.
    """
    changes: dict[str, float] = {}
    for (number, _, deviations), seconds in shifted:
        change = math.log(seconds / base) / deviations
        changes[number] = max(change, changes.get(number, 0.0), key=abs)
    return changes


class RunTimer:
    """Times runs in one session of a phone, with the uncertainty of the times.

    Every modelled time of a run is from here: `Phone.time`, the times of evaluations, and those
    that `experiments.reproduce` compares with published figures. The timers of shifted profiles are
    made once, so runs share them.

    Args:
      timer_of: makes the timer of a profile, which has `latency(run)` as `ForwardTimer` does.
      matters: whether a number, by its path, can change a time.
      session: state of the phone.
      spread: standard deviation of the logarithm of times that neither numbers nor session explain.
    """

    def __init__(
        self,
        profile: Profile,
        timer_of: Callable[[Profile], Any],
        matters: Callable[[str], bool] = bool,
        session: Session = COOL,
        spread: float = 0.0,
    ) -> None:
        self.profile, self.session, self.timer = profile, session, timer_of(profile)
        self._spread = spread
        shifts = partial(shifted_profiles, profile, matters)
        self._shifted = cache(lambda: [(shift, timer_of(shift.profile)) for shift in shifts()])

    def during(self, session: Session) -> "RunTimer":
        """Returns a timer for another session, which shares this one's timers."""
        other = copy(self)
        other.session = session
        return other

    def seconds(self, run: Any) -> float:
        """Returns the seconds of a run in this session."""
        return self.session.slowdown * self.timer.latency(run)

    def changes(self, run: Any) -> dict[str, float]:
        """Returns the change of a run's log time per standard deviation of each number."""
        timed = ((shift, timer.latency(run)) for shift, timer in self._shifted())
        return log_changes(self.timer.latency(run), timed)

    def uncertain(self, run: Any) -> UncertainLatency:
        """Returns the time of a run with its uncertainty, which includes both spreads."""
        seconds, changes = self.seconds(run), self.changes(run)
        effects = ((number, seconds * abs(change)) for number, change in changes.items() if change)
        largest = tuple(sorted(effects, key=lambda effect: -effect[1])[:5])
        relative = math.hypot(self.session.spread, self._spread, *changes.values())
        return UncertainLatency(seconds, relative, largest)
