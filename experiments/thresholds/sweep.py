"""Ways of decoding that differ in a few settings, and which of them to choose."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.evaluate.score import Score
from llada_jax.config import SamplerConfig, require

_SETTINGS = {
    name: hint
    for name, hint in SamplerConfig.setting_types().items()
    if name not in ("gen_length", "steps")  # which a task sets
}
_RULES = {
    *("accept", "threshold", "factor", "entropy_bound", "theta_visible", "theta_stable"),
    *("wino_accept", "wino_verify", "edit_unmask", "edit_replace", "edit_steps", "rescore"),
    *("refresh", "refresh_rows", "end_steps"),
}
"""Settings of what accepts and revises tokens; the others say what it works on."""


class Axes(
    make_dataclass(
        "Values",
        [(name, tuple[hint, ...], field(default=())) for name, hint in _SETTINGS.items()],
        frozen=True,
        kw_only=True,
    )
):
    """Values of settings of `SamplerConfig`; those that are empty stay as the sampler has them."""

    def combinations(self) -> Iterator[dict[str, Any]]:
        """All of them, less those whose theta_visible is above theta_stable."""
        axes = {each.name: getattr(self, each.name) for each in fields(self)}
        axes = {name: values for name, values in axes.items() if values}
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
        """`staged@theta_visible:0.7,theta_stable:0.9`"""
        return f"{self.sweep}@{self.particular}" if self.particular else self.sweep


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """A sampler, and the settings of it that vary."""

    name: str
    sampler: SamplerConfig
    over: Axes = field(default_factory=Axes)

    def __post_init__(self) -> None:
        require(len(self.settings) > 0, f"sweep {self.name!r} is empty; allowed: one setting")

    @property
    def settings(self) -> list[Setting]:
        return [
            Setting(
                self.name,
                ",".join(f"{key}:{value}" for key, value in combination.items()),
                self.sampler.replace(**combination),
            )
            for combination in self.over.combinations()
        ]


def by_program(settings: Iterable[Setting]) -> list[Setting]:
    """Those that one compiled program decodes, since only numbers of rules differ, together."""
    groups: dict[Any, list[Setting]] = {}
    for setting in settings:
        groups.setdefault(jax.tree.structure(setting.sampler), []).append(setting)
    return list(itertools.chain(*groups.values()))


class Found(NamedTuple):
    """A setting and its score.

    Attributes:
      refreshed: tokens of an item that were refreshed after they had left the window; None where
        the sampler never refreshes.
    """

    setting: Setting
    score: Score
    refreshed: float | None = None


def chosen(found: Sequence[Found], plain: Score, points: float) -> Found | None:
    """The fewest forwards among those that lose at most so many points of exact match against the
    plain sampler; of equal ones the better. None where all lose more."""
    least = plain.exact_match - points / 100
    kept = [each for each in found if each.score.exact_match >= least - 1e-9]
    return min(kept, key=lambda each: (each.score.nfe, -each.score.exact_match), default=None)


class Revision(NamedTuple):
    """What staged decoding makes of committing at the same threshold for good.

    Attributes:
      lost: exact match that the threshold loses against one token a forward.
      recovered: exact match that revision brings back.
      forwards: those with revision by those without.
      beyond: exact match above the threshold rule's own line at as many forwards; None where none
        of its settings needs as many.
    """

    staged: Found
    hasty: Found
    lost: float
    recovered: float
    forwards: float
    beyond: float | None


def revisions(found: Sequence[Found], slowest: Score) -> list[Revision]:
    """Every staged setting against the threshold that it makes tokens visible at, where all but the
    rules is the same: a window of another size has other forwards of its own."""
    thresholds = [each for each in found if each.setting.sampler.accept == "threshold"]
    pairs = []
    for staged in found:
        sampler = staged.setting.sampler
        if sampler.accept != "staged":
            continue
        alike = [each for each in thresholds if _alike(each.setting.sampler, sampler)]
        for hasty in alike:
            if hasty.setting.sampler.threshold == sampler.theta_visible:
                pairs.append(_revision(staged, hasty, alike, slowest))
    return pairs


def _alike(one: SamplerConfig, other: SamplerConfig) -> bool:
    return all(getattr(one, name) == getattr(other, name) for name in _SETTINGS.keys() - _RULES)


def _revision(staged: Found, hasty: Found, alike: Sequence[Found], slowest: Score) -> Revision:
    line = sorted((each.score.nfe, each.score.exact_match) for each in alike)
    forwards, scores = np.array(line).T
    reached = forwards[0] <= staged.score.nfe <= forwards[-1]
    level = float(np.interp(staged.score.nfe, forwards, scores))
    return Revision(
        staged,
        hasty,
        lost=slowest.exact_match - hasty.score.exact_match,
        recovered=staged.score.exact_match - hasty.score.exact_match,
        forwards=staged.score.nfe / hasty.score.nfe,
        beyond=staged.score.exact_match - level if reached else None,
    )
