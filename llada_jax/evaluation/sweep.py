"""Ways of decoding that differ in a few settings, and which of them to choose.

Sweep(name="staged", sampler=staged, over=Axes(theta_visible=(0.5, 0.7))).settings
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from llada_jax.config import SamplerConfig, require
from llada_jax.evaluation.tally import Tally


class Axes(
    make_dataclass(
        "Values",
        [
            (name, tuple[hint, ...], field(default=()))
            for name, hint in SamplerConfig.setting_types().items()
            if name not in ("gen_length", "steps")  # which a task sets
        ],
        frozen=True,
        kw_only=True,
    )
):
    """Holds values of settings of `SamplerConfig`; empty ones stay as the sampler has them."""

    @property
    def given(self) -> dict[str, tuple[Any, ...]]:
        """Returns the values of the settings that have some."""
        return {e.name: getattr(self, e.name) for e in fields(self) if getattr(self, e.name)}

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Yields all of them, less those whose theta_visible is above theta_stable."""
        axes = self.given
        for values in itertools.product(*axes.values()):
            combination: dict[str, Any] = dict(zip(axes, values, strict=True))
            low, high = (combination.get(name) for name in ("theta_visible", "theta_stable"))
            if low is None or high is None or low <= high:
                yield combination


class Setting(NamedTuple):
    """A way of decoding, by the name of its sweep and of what is particular to it."""

    sweep: str
    particular: str
    sampler: SamplerConfig

    @property
    def name(self) -> str:
        """Returns `staged@theta_visible:0.7,theta_stable:0.9`."""
        return f"{self.sweep}@{self.particular}" if self.particular else self.sweep


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sampler, and the settings of it that vary."""

    name: str
    sampler: SamplerConfig
    over: Axes = field(default_factory=Axes)

    def __post_init__(self) -> None:
        require(len(self.settings) > 0, f"sweep {self.name!r} is empty; allowed: one setting")

    @property
    def settings(self) -> list[Setting]:
        """Returns the sampler with each combination of values."""
        return [
            Setting(
                self.name,
                ",".join(f"{key}:{value}" for key, value in combination.items()),
                self.sampler.replace(**combination),
            )
            for combination in self.over.combinations()
        ]


def by_program(settings: Iterable[Setting]) -> list[Setting]:
    """Groups settings that one compiled program decodes: only numbers of their rules differ."""
    groups: dict[Any, list[Setting]] = {}
    for setting in settings:
        groups.setdefault(jax.tree.structure(setting.sampler), []).append(setting)
    return list(itertools.chain(*groups.values()))


class Found(NamedTuple):
    """A setting and what it scored."""

    setting: Setting
    tally: Tally
    refreshed: float | None = None
    """Tokens of an item, on average, that were refreshed; None where the sampler never does."""


def fewest_forwards(found: Sequence[Found], plain: Tally, points: float) -> Found | None:
    """Chooses the fewest forwards among settings that lose at most so many points of exact match
    against the plain sampler; of equal ones the better. Returns None where all lose more."""
    least = plain.exact_match - points / 100
    kept = [each for each in found if each.tally.exact_match >= least - 1e-9]
    return min(kept, key=lambda each: (each.tally.nfe, -each.tally.exact_match), default=None)


class Revision(NamedTuple):
    """What staged decoding makes of committing at the same threshold for good."""

    staged: Found
    hasty: Found
    lost: float
    """Exact match that the threshold loses against one token a forward."""
    recovered: float
    """Exact match that revision brings back."""
    forwards: float
    """Those with revision by those without."""
    beyond: float | None
    """Exact match above the threshold rule's line at as many forwards; None where it ends."""


def revisions(found: Sequence[Found], slowest: Tally) -> list[Revision]:
    """Compares every setting whose rule revises with what it first makes visible committed for
    good, where all but the rules is the same: a window of another size has other forwards."""
    pairs = []
    for staged in found:
        sampler = staged.setting.sampler
        rule = sampler.rule.at_once()
        others = (each for each in found if isinstance(each.setting.sampler.rule, type(rule)))
        alike = [each for each in others if _alike(each.setting.sampler, sampler)]
        pairs += [
            _revision(staged, hasty, alike, slowest)
            for hasty in alike
            if hasty.setting.sampler.rule == rule
        ]
    return pairs


def _alike(one: SamplerConfig, other: SamplerConfig) -> bool:
    return one.replace(rule=other.rule) == other


def _revision(staged: Found, hasty: Found, alike: Sequence[Found], slowest: Tally) -> Revision:
    line = sorted((each.tally.nfe, each.tally.exact_match) for each in alike)
    forwards, scores = np.array(line).T
    reached = forwards[0] <= staged.tally.nfe <= forwards[-1]
    level = float(np.interp(staged.tally.nfe, forwards, scores))
    return Revision(
        staged,
        hasty,
        lost=slowest.exact_match - hasty.tally.exact_match,
        recovered=staged.tally.exact_match - hasty.tally.exact_match,
        forwards=staged.tally.nfe / hasty.tally.nfe,
        beyond=staged.tally.exact_match - level if reached else None,
    )
