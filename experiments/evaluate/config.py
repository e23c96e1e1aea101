"""Settings of `experiments.evaluate`: the task and its items, the sampler, the suite."""

from dataclasses import dataclass

from hydra.core.config_store import ConfigStore

import llada_jax as lj
from experiments.harness.model_source import ModelSource
from experiments.harness.tiled import check_tiles
from llada_jax.config import ONE_DEVICE, MeshConfig, require, require_counts
from llada_jax.evaluation.evaluate import PLACES, Trial, with_answer_length
from llada_jax.evaluation.generations import ALONE, Worker
from llada_jax.evaluation.prompts import Prompts
from llada_jax.evaluation.task import TaskItems
from llada_jax.evaluation.tasks import load_task, task_names
from llada_jax.phones.profile import load_profile
from llada_jax.revision.tiles import Kind
from llada_jax.sampler.config import SamplerConfig

CELLS = "cells"
"""Name of the folder in a suite's run that has a run for each decoder and task."""

# Hydra's choices `task=<name>`.
for _task in map(load_task, task_names()):
    _items = {"seed": 0, "items": 500, "difficulty": _task.default_difficulty}
    _settings = {"name": _task.name, **_items, "gen_length": _task.gen_length, "prompts": "plain"}
    ConfigStore.instance().store(_task.name, _settings, group="task")


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The first `items` of a seed's test split. Sampler settings refer to `gen_length`."""

    name: str
    seed: int
    items: int
    difficulty: int | None
    gen_length: int
    prompts: Prompts = "plain"

    def __post_init__(self) -> None:
        _ = self.task_items  # checks all fields

    @property
    def task_items(self) -> TaskItems:
        return TaskItems(
            task=load_task(self.name),
            count=self.items,
            seed=self.seed,
            difficulty=self.difficulty,
            prompts=self.prompts,
        )


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A named decoder of a suite; each task sets its answer length."""

    name: str
    sampler: SamplerConfig


@dataclass(frozen=True, kw_only=True)
class SuiteConfig:
    """Decoders and tasks to compare, on the first items of each task; decoder 0 is the baseline."""

    name: str
    tasks: tuple[str, ...]
    decoders: tuple[DecoderConfig, ...]

    def __post_init__(self) -> None:
        decoders = [decoder.name for decoder in self.decoders]
        for what, names in (("decoders", decoders), ("tasks", list(self.tasks))):
            require(len(names) > 0, f"{what} is empty; allowed: one or more")
            require(len(set(names)) == len(names), f"{what} are {names}; allowed: each name once")
        for task in self.tasks:
            for decoder in self.decoders:
                _ = with_answer_length(decoder.sampler, load_task(task))  # checks the two together


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(ModelSource):
    """Settings of the verb; conf/evaluate.yaml explains each."""

    task: TaskConfig
    sampler: SamplerConfig
    backend: str = "xla"
    tiles: Kind | None = None
    mesh: MeshConfig = ONE_DEVICE
    seed: int = 0
    batch_size: int = 50
    places: int = PLACES
    phones: tuple[str, ...] = ()
    suite: SuiteConfig | None = None
    worker: Worker = ALONE

    def __post_init__(self) -> None:
        require_counts(self, "batch_size", "places")
        if self.suite is None:
            check_tiles(self.tiles, self.backend, self.sampler)
        for soc in self.phones:
            _ = load_profile(soc)

    def trial(
        self, model: lj.Model, items: TaskItems, sampler: SamplerConfig, sampler_name: str
    ) -> Trial:
        """Returns the trial of a sampler on items, with the settings of this run."""
        return Trial(
            model=model,
            dtype=self.dtype,
            items=items,
            sampler_name=sampler_name,
            sampler=sampler,
            backend=self.backend,
            refresh_on=lj.tiled(model) if self.tiles else None,
            seed=self.seed,
            batch_size=self.batch_size,
            places=self.places,
        )
