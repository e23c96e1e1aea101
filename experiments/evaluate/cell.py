"""One cell of an evaluation: a task's items, answered by one model with one decoder."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

import llada_jax as lj
from experiments.evaluate.answers import answer_items, batched
from experiments.evaluate.judged import GENERATIONS, Judged, judged
from experiments.harness.tiled import models_for
from llada_jax.backend.manifest import MANIFEST
from llada_jax.config import SamplerConfig, require
from llada_jax.evaluation.generations import GenerationStore
from llada_jax.evaluation.task import Item, Task
from llada_jax.evaluation.tasks import load_task
from llada_jax.revision.tiles import Kind


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The first items of a seed's test split. `gen_length` is for the sampler to refer to."""

    name: str
    seed: int
    items: int
    difficulty: int
    gen_length: int

    def __post_init__(self) -> None:
        require(self.items > 0, f"items is {self.items}; allowed: 1 or more")
        _ = self.item(0)  # which checks name and difficulty

    @property
    def task(self) -> Task:
        return load_task(self.name)

    @property
    def settings(self) -> dict[str, Any]:
        """Which items they are; not how many."""
        return {
            "name": self.name,
            "version": self.task.version,
            "seed": self.seed,
            "difficulty": self.difficulty,
            "split": "test",
        }

    def item(self, index: int) -> Item:
        return self.task.item(self.seed, index, "test", difficulty=self.difficulty)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is decoded, and with what."""

    model: str
    dtype: str | None
    task: TaskConfig
    sampler_name: str
    sampler: SamplerConfig
    backend: str
    seed: int
    batch_size: int
    tiles: Kind | None = None

    def load(self) -> lj.Model:
        """Raises ValueError for a model without tokenizer."""
        return load_model(self.model, self.dtype)

    def settings(self, model: lj.Model) -> dict[str, Any]:
        """What the generations depend on; not how many there are, nor how many at a time."""
        return {
            "model": self.model,
            "dtype": self.dtype,
            "fingerprint": fingerprint(model),
            "task": self.task.settings,
            "sampler_name": self.sampler_name,
            "sampler": self.sampler.as_dict(),
            "backend": self.backend,
            "tiles": self.tiles,
            "seed": self.seed,
        }

    def store(self, folder: Path, model: lj.Model) -> GenerationStore:
        """The generations in the folder of a run, with those that an interrupted run left.

        Raises ValueError for a folder of other settings, and for a damaged file.
        """
        store = GenerationStore.begin(folder / GENERATIONS, self.settings(model))
        _ = store.generations()
        return store

    def decode(self, model: lj.Model, store: GenerationStore) -> Judged:
        """Answers the items that the store does not have yet."""
        done = {generation.index for generation in store.generations()}
        missing = [index for index in range(self.task.items) if index not in done]
        running, refresh_on = models_for(model, self.tiles, self.backend, self.sampler)
        what = f"{self.task.name}, {self.sampler_name}"
        with tqdm(total=self.task.items, initial=len(done), desc=what, mininterval=1) as bar:
            for indices in batched(missing, self.batch_size):
                items = {index: self.task.item(index) for index in indices}
                answers = answer_items(
                    running,
                    items,
                    self.sampler,
                    backend=self.backend,
                    seed=self.seed,
                    refresh_on=refresh_on,
                )
                store.add(*answers)
                bar.update(len(indices))
        return judged(store.folder.parent, self.task.items)


def load_model(name: str, dtype: str | None) -> lj.Model:
    """One that answers questions. Raises ValueError for a model without tokenizer."""
    model = lj.load(name, dtype)
    require(
        model.tokenizer is not None, f"model {name!r} has no tokenizer.json; allowed: one that has"
    )
    return model


def fingerprint(model: lj.Model) -> str:
    """Tells models apart by what is small in them: no two trainings end with the same norms."""
    digest = hashlib.sha256(repr(model.config).encode())
    if model.artifact is not None:
        digest.update((model.artifact / MANIFEST).read_bytes())
    for leaf in jax.tree.leaves(model.params):
        if leaf.ndim == 1:
            digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()[:16]
