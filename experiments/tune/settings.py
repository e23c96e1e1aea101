"""What a search may set, and on what it is judged."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from functools import partial
from typing import Any

from experiments.harness.model_source import ModelSource
from experiments.harness.results import Kind
from llada_jax.config import require, require_counts
from llada_jax.evaluation.evaluate import PLACES, with_answer_length
from llada_jax.evaluation.task import TaskItems, ValidationItems
from llada_jax.evaluation.tasks import load_task
from llada_jax.model.architecture import architecture
from llada_jax.phones.profile import load_profile
from llada_jax.sampler.config import SamplerConfig
from llada_jax.swap.planners import planner

HERE = "here"
"""The name of the machine at hand, in place of a phone's."""
BOUNDED = {"theta_visible": "theta_stable", "lookahead_trigger": "block_length"}
Draw = Callable[[str, int], int]
"""Draws a place, 0 to a number less one, for a name."""


_VALUES = [
    (name, tuple[hint, ...], field(default=()))
    for name, hint in SamplerConfig.setting_types().items()
    if name not in ("gen_length", "steps")  # which a task sets
]


class Axes(make_dataclass("Values", _VALUES, frozen=True, kw_only=True)):
    """Holds values of settings of `SamplerConfig`; empty ones stay as the sampler has them."""

    @property
    def given(self) -> dict[str, tuple[Any, ...]]:
        """Returns the values of the settings that have some."""
        return {e.name: getattr(self, e.name) for e in fields(self) if getattr(self, e.name)}


@dataclass(frozen=True, kw_only=True)
class SamplerFamily:
    """A sampler, and values of the settings of it that a search chooses from."""

    name: str
    sampler: SamplerConfig
    over: Axes = field(default_factory=Axes)

    def sampler_with(self, values: Sequence[Any]) -> SamplerConfig:
        """Returns the sampler with a value on each axis. One that another value makes too large,
        `theta_visible` by `theta_stable` and `lookahead_trigger` by `block_length`, is as large."""
        settings = dict(zip(self.over.given, values, strict=True))
        whole = self.sampler.as_dict() | settings
        for low, high in BOUNDED.items():
            if low in settings:
                settings[low] = min(settings[low], whole[high])
        return self.sampler.replace(**settings)


@dataclass(frozen=True, kw_only=True)
class TuneConfig(ModelSource):
    """What to search, for which phone, on which items. The comments are in conf/tune.yaml."""

    backend: str = "xla"
    phone: str
    shape: str
    planners: tuple[str, ...] = ()
    tasks: tuple[str, ...]
    difficulty: int | None = None
    items: int = 150
    at_once: int = 50
    seed: int = 2000
    confirm_items: int = 400
    confirm_seed: int = 3000
    places: int = PLACES
    answers: str | None = None
    loss: float = 0.5
    budget: int = 40
    reference: SamplerConfig
    published: SamplerConfig
    families: tuple[SamplerFamily, ...]

    def __post_init__(self) -> None:
        require_counts(self, "items", "at_once", "confirm_items", "places", "budget")
        require(self.loss >= 0, f"loss is {self.loss}; allowed: points, 0 or more")
        require(len(self.tasks) > 0, "tasks is empty; allowed: one or more")
        require(len(self.families) > 0, "families is empty; allowed: one or more")
        names = [family.name for family in self.families]
        twice = [name for name in names if names.count(name) > 1]
        require(not twice, f"family {twice[:1]} is there twice; allowed: each name once")
        if self.phone == HERE:
            counts = self.at_once, self.items, self.confirm_items
            require(
                self.at_once < min(counts[1:]),
                f"at_once, items, confirm_items are {counts}; allowed with phone={HERE}: at_once "
                "below the others, as programs compile while the first are decoded",
            )
        else:
            _ = load_profile(self.phone)
        for name in self.planners:
            _ = planner(name)
        _ = architecture(self.shape), self.searched
        for items, family in itertools.product(self.confirmed, self.families):
            for values in itertools.product(*family.over.given.values()):
                _ = with_answer_length(family.sampler_with(values), items.task)

    @property
    def searched(self) -> list[TaskItems]:
        """Each task's items that settings are chosen by: none of those that confirm."""
        return [
            ValidationItems(task=each.task, count=self.items, seed=self.seed,
                            difficulty=each.difficulty, scored_seed=each.seed,
                            scored_items=each.count)
            for each in self.confirmed
        ]  # fmt: skip

    @property
    def confirmed(self) -> list[TaskItems]:
        """Each task's items that only what was chosen, and what it is to beat, answer."""
        items = partial(TaskItems, count=self.confirm_items, seed=self.confirm_seed)
        return [items(task=load_task(name), difficulty=self.difficulty) for name in self.tasks]

    @property
    def kind(self) -> Kind:
        """How seconds and joules are known."""
        return "measured" if self.phone == HERE else "modelled"


def first_proposals(families: Sequence[SamplerFamily]) -> Iterator[dict[str, int]]:
    """Yields, as the places that `drawn` asks for, the families' own samplers, and then those with
    one setting changed, the nearest values first and the families in turns."""
    steps = [_one_changed(family) for family in families]
    for distance in range(1 + max(step for own in steps for step, _ in own)):
        turns = [[places for step, places in own if step == distance] for own in steps]
        for turn in itertools.zip_longest(*turns):
            for number, places in enumerate(turn):
                if places is not None:
                    yield {"family": number, **places}


def _one_changed(family: SamplerFamily) -> list[tuple[int, dict[str, int]]]:
    """Returns the family's own sampler, and those with another value on one axis, each with the
    number of values between the two."""
    axes, usual = family.over.given, family.sampler.as_dict()
    places = {
        f"{family.name}.{name}": values.index(usual[name]) if usual[name] in values else 0
        for name, values in axes.items()
    }
    found = [(0, places)]
    for (axis, own), values in zip(places.items(), axes.values(), strict=True):
        others = (place for place in range(len(values)) if place != own)
        found += [(abs(place - own), {**places, axis: place}) for place in others]
    return found


def drawn(families: Sequence[SamplerFamily], draw: Draw) -> tuple[SamplerFamily, SamplerConfig]:
    """Returns one of the families, and its sampler with a value on each of its axes."""
    family = families[draw("family", len(families))]
    axes = family.over.given.items()
    values = [axis[draw(f"{family.name}.{name}", len(axis))] for name, axis in axes]
    return family, family.sampler_with(values)
