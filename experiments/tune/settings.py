"""Settings of `experiments.tune`: sampler families with their axes, and the items of the search."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cached_property, partial
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
"""The value of `phone` that chooses this machine."""
BOUNDED = {"theta_visible": "theta_stable", "lookahead_trigger": "block_length"}
Draw = Callable[[str, int], int]
"""Draws an index from 0 to n - 1, from a name and n."""


_VALUES = [
    (name, tuple[hint, ...], field(default=()))
    for name, hint in SamplerConfig.setting_types().items()
    if name not in ("gen_length", "steps")  # a task sets these
]


class Axes(make_dataclass("Values", _VALUES, frozen=True, kw_only=True)):
    """Values to search for each setting of `SamplerConfig`; no values: the sampler's own."""

    @property
    def searched(self) -> dict[str, tuple[Any, ...]]:
        """The settings that have values."""
        return {e.name: getattr(self, e.name) for e in fields(self) if getattr(self, e.name)}


@dataclass(frozen=True, kw_only=True)
class SamplerFamily:
    """A sampler, and the values that a search may set in it."""

    name: str
    sampler: SamplerConfig
    over: Axes = field(default_factory=Axes)

    def sampler_with(self, values: Sequence[Any]) -> SamplerConfig:
        """Returns the sampler with a value on each axis. `theta_visible` is at most `theta_stable`,
        and `lookahead_trigger` at most `block_length`."""
        settings = dict(zip(self.over.searched, values, strict=True))
        whole = self.sampler.as_dict() | settings
        for low, high in BOUNDED.items():
            if low in settings:
                settings[low] = min(settings[low], whole[high])
        return self.sampler.replace(**settings)


@dataclass(frozen=True, kw_only=True)
class TuneConfig(ModelSource):
    """Settings of the verb; conf/tune.yaml explains each."""

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
        require(not twice, f"family {twice[:1]} is listed twice; allowed: each name once")
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
            for values in itertools.product(*family.over.searched.values()):
                _ = with_answer_length(family.sampler_with(values), items.task)

    @cached_property  # finding the confirmation's questions takes a second
    def searched(self) -> list[TaskItems]:
        """The items of each task that the search uses; none is among the confirmation's."""
        return [
            ValidationItems(task=held_out.task, count=self.items, seed=self.seed,
                            difficulty=held_out.difficulty, scored_seed=held_out.seed,
                            scored_items=held_out.count)
            for held_out in self.confirmed
        ]  # fmt: skip

    @property
    def confirmed(self) -> list[TaskItems]:
        """The items of each task for the final comparison."""
        items = partial(TaskItems, count=self.confirm_items, seed=self.confirm_seed)
        return [items(task=load_task(name), difficulty=self.difficulty) for name in self.tasks]

    @property
    def kind(self) -> Kind:
        """The kind of seconds and joules."""
        return "measured" if self.phone == HERE else "modelled"


def first_proposals(families: Sequence[SamplerFamily]) -> Iterator[dict[str, int]]:
    """Yields the families' own samplers, then those with one setting changed, the nearest values
    first and the families in alternation. Each is a mapping of names and indices for `drawn`."""
    steps = [_one_changed(family) for family in families]
    for distance in range(1 + max(step for family in steps for step, _ in family)):
        turns = [[places for step, places in family if step == distance] for family in steps]
        for turn in itertools.zip_longest(*turns):
            for number, places in enumerate(turn):
                if places is not None:
                    yield {"family": number, **places}


def _one_changed(family: SamplerFamily) -> list[tuple[int, dict[str, int]]]:
    """Returns the family's own sampler and those with another value on one axis, each with its
    distance in values."""
    axes, usual = family.over.searched, family.sampler.as_dict()
    places = {
        f"{family.name}.{name}": values.index(usual[name]) if usual[name] in values else 0
        for name, values in axes.items()
    }
    neighbours = [(0, places)]
    for (axis, center), values in zip(places.items(), axes.values(), strict=True):
        others = (place for place in range(len(values)) if place != center)
        neighbours += [(abs(place - center), {**places, axis: place}) for place in others]
    return neighbours


def drawn(families: Sequence[SamplerFamily], draw: Draw) -> tuple[SamplerFamily, SamplerConfig]:
    """Draws a family and a value on each of its axes; returns the family and the sampler."""
    family = families[draw("family", len(families))]
    axes = family.over.searched.items()
    values = [axis[draw(f"{family.name}.{name}", len(axis))] for name, axis in axes]
    return family, family.sampler_with(values)
