"""What a run of `experiments.evaluate` decodes, as its settings say it."""

from dataclasses import dataclass

import llada_jax as lj
from experiments.harness.tiled import models_for
from llada_jax.config import SamplerConfig
from llada_jax.evaluation.harness import Trial
from llada_jax.evaluation.items import TaskItems
from llada_jax.evaluation.tasks import load_task
from llada_jax.revision.tiles import Kind

CELLS = "cells"
"""The folder, in that of a suite or a sweep, with a run for each decoder and task."""


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The first items of a seed's test split. `gen_length` is for the sampler to refer to."""

    name: str
    seed: int
    items: int
    difficulty: int | None
    gen_length: int

    def __post_init__(self) -> None:
        _ = self.asked  # which checks all of it

    @property
    def asked(self) -> TaskItems:
        """Returns the items."""
        return TaskItems(
            task=load_task(self.name), count=self.items, seed=self.seed, difficulty=self.difficulty
        )


@dataclass(frozen=True, kw_only=True)
class TrialConfig:
    """A task's items and a decoder, whose model is not loaded yet."""

    model: str
    dtype: str | None
    items: TaskItems
    sampler_name: str
    sampler: SamplerConfig
    backend: str = "xla"
    seed: int = 0
    batch_size: int
    tiles: Kind | None = None

    def trial(self, model: lj.Model) -> Trial:
        """Returns it with its model, in tiles where it asks for them."""
        running, refresh_on = models_for(model, self.tiles, self.backend, self.sampler)
        return Trial(
            model=running,
            dtype=self.dtype,
            items=self.items,
            sampler_name=self.sampler_name,
            sampler=self.sampler,
            backend=self.backend,
            refresh_on=refresh_on,
            seed=self.seed,
            batch_size=self.batch_size,
        )
