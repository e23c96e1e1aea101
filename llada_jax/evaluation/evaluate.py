"""A decoder's score on a task: its items are answered, stored, and graded.

found = lj.evaluate(model, "yes_no", "llada_cpp", items=100, folder="outputs/yes_no")
found.score, found.interval, found.nfe, found.tpf
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import numpy as np
from tqdm import tqdm

from llada_jax.api.decoding import generate_stream
from llada_jax.api.loading import Model, load
from llada_jax.config import Loop, require, require_counts
from llada_jax.evaluation.environment import environment
from llada_jax.evaluation.generations import (
    ALONE,
    Generation,
    GenerationBatch,
    GenerationMemory,
    GenerationStore,
    Worker,
)
from llada_jax.evaluation.graded import GENERATIONS, Evaluation, graded
from llada_jax.evaluation.task import Task, TaskItems
from llada_jax.evaluation.tasks import load_task
from llada_jax.model.mesh import mesh_of
from llada_jax.model.params import parameter_name
from llada_jax.revision.tiles import Tiles
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.trace import Trace

PLACES = 8
"""Items that are decoded at a time."""


def evaluate(
    model: Model | str | os.PathLike[str],
    task: str | Task = "word_problems",
    sampler: str | SamplerConfig = "llada",
    *,
    items: int = 100,
    seed: int = 0,
    difficulty: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    baseline: Evaluation | str | os.PathLike[str] | None = None,
    backend: str = "xla",
    refresh_on: Model | None = None,
    loop: Loop | None = None,
    sampling_seed: int = 0,
    batch_size: int = 50,
    places: int = PLACES,
    progress: bool = True,
) -> Evaluation:
    """Scores a decoder on the first items of a task's test split.

    Args:
      model: loaded, or what `llada_jax.load` takes.
      task: a name of `llada_jax.evaluation.tasks.task_names()`, or a task of one's own.
      sampler: a preset, which gets the task's answer length; or a configuration, taken as it is.
      items, seed: how many of whose sequence; of those that ask the same question, one counts.
      difficulty: default: the task's.
      folder: where answers and traces are stored. The same call goes on where it was interrupted,
        and with more items it only decodes what is new. Answers are those of one run; confidences
        in traces may differ from it by rounding (`Trace`). Default: they are kept in memory.
      baseline: an evaluation of the same items, or its folder, for `Evaluation.against`.
      backend, refresh_on, loop: as in `llada_jax.generate`.
      sampling_seed: of what is drawn while decoding; an item's own seed is this plus its place.
      batch_size: items that are stored together.
      places: items that are decoded at a time: one that is done gives its place to the next. It
        changes no answer.

    Raises ValueError or FileNotFoundError that names the bad value and what is allowed, before
    anything is decoded; also for a folder of other settings, or a damaged one.
    """
    task, sampler_name = load_task(task) if isinstance(task, str) else task, "custom"
    if isinstance(sampler, str):
        sampler_name, sampler = sampler, lengthened(SamplerConfig.preset(sampler), task)
    trial = Trial(
        model=model if isinstance(model, Model) else load(model),
        items=TaskItems(task=task, count=items, seed=seed, difficulty=difficulty),
        sampler_name=sampler_name,
        sampler=sampler,
        backend=backend,
        refresh_on=refresh_on,
        loop=loop,
        seed=sampling_seed,
        batch_size=batch_size,
        places=places,
    )
    if not isinstance(baseline, Evaluation | None):
        baseline = Evaluation.load(Path(baseline))
    if baseline is not None:
        baseline.require_items(trial.items.settings, range(items), "this evaluation")
    found = trial.run(
        GenerationMemory(trial.settings) if folder is None else trial.store(Path(folder)), progress
    )
    return found if baseline is None else found.compared_with(baseline)


def lengthened(sampler: SamplerConfig, task: Task) -> SamplerConfig:
    """Returns the sampler with a task's answer length; if it commits by number, a token a step."""
    return sampler.replace(gen_length=task.gen_length, steps=task.gen_length)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The items of a task, for one model to answer with one decoder; the fields are those of
    `evaluate`. Raises ValueError for a model without a tokenizer, and for counts below 1."""

    model: Model
    dtype: str | None = None
    items: TaskItems
    sampler_name: str
    """What the decoder is called where its answers are stored, as `dtype` is told there."""
    sampler: SamplerConfig
    backend: str = "xla"
    refresh_on: Model | None = None
    loop: Loop | None = None
    seed: int = 0
    """The `sampling_seed`: an item's own seed is this plus its place."""
    batch_size: int = 50
    places: int = PLACES

    def __post_init__(self) -> None:
        require_counts(self, "batch_size", "places")
        require(
            self.model.tokenizer is not None,
            f"model {self.model.source or 'model'!r} has no tokenizer.json; allowed: one that has",
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Says what the answers depend on, as plain JSON: not how many are decoded at a time."""
        mesh = mesh_of(self.model.params)
        on_mesh = {} if mesh is None else {"mesh": dict(mesh.shape)}
        leaves = jax.tree.leaves([each and each.params for each in (self.model, self.refresh_on)])
        return on_mesh | {
            "model": self.model.source or "model",
            "model_config": asdict(self.model.config),
            "dtype": self.dtype or self.model.stored_as,
            "fingerprint": fingerprint(self.model),
            "task": self.items.settings,
            "sampler_name": self.sampler_name,
            "sampler": self.sampler.as_dict(),
            "backend": self.backend,
            "tiles": next((leaf.kind for leaf in leaves if isinstance(leaf, Tiles)), None),
            "refresh_on": self.refresh_on and fingerprint(self.refresh_on),
            "seed": self.seed,
        }

    def store(self, folder: Path) -> GenerationStore:
        """Opens the answers in the folder of a run, with those that an interrupted run left.
        Raises ValueError where the folder's settings are others, or a file is damaged."""
        store = GenerationStore.begin(folder / GENERATIONS, self.settings)
        _ = store.generations()
        return store

    def run(self, store: GenerationStore | GenerationMemory, progress: bool = True) -> Evaluation:
        """Answers the items that the store does not have yet, and grades all of them."""
        self.fill(store, ALONE, progress)
        store.reach(self.items.count)
        return graded(store, self.items.task, self.items.count)

    def fill(
        self, store: GenerationStore | GenerationMemory, worker: Worker, progress: bool = True
    ) -> int:
        """Answers what the store does not have yet of a worker's batches, which begin at multiples
        of `batch_size` whatever is there; returns how many items that was."""
        done = {each.index for batch in store.batches() for each in batch.generations}
        own = [i for i in range(self.items.count) if worker.takes(i // self.batch_size)]
        missing = [index for index in own if index not in done]
        name, before = f"{self.items.task.name}, {self.sampler_name}", len(own) - len(missing)
        shown = {"initial": before, "mininterval": 1, "disable": not progress}
        with tqdm(desc=name, total=len(own), **shown) as bar:
            for batch, trace in self.answers(missing) if missing else ():
                store.add(batch, trace)
                bar.update(len(batch.generations))
        return len(missing)

    def answers(self, indices: Sequence[int]) -> Iterator[tuple[GenerationBatch, Trace]]:
        """Decodes items in one stream, and yields them in batches, in their order. An answer ends
        with its first token that ends a text or a turn."""
        assert self.model.tokenizer is not None
        items = [self.items.item(index) for index in indices]
        chats = [[{"role": "user", "content": item.question}] for item in items]
        compiled_before = len(_compilations())
        stream = generate_stream(
            self.model,
            [self.model.tokenizer.encode_chat(chat) for chat in chats],
            self.sampler,
            places=self.places,
            together=list(Counter(index // self.batch_size for index in indices).values()),
            backend=self.backend,
            seed=[self.seed + index for index in indices],
            trace=True,
            loop=self.loop,
            refresh_on=self.refresh_on,
        )
        left = zip(indices, items, strict=True)
        for found in stream:
            asked = islice(left, len(found.nfe))
            columns = (asked, found.text, found.generated, found.answers, found.nfe)
            generations = [  # the length of an answer counts the token that ends it
                Generation(*item, text, ids.tolist(), min(len(answer) + 1, len(ids)), int(nfe))
                for item, text, ids, answer, nfe in zip(*columns, strict=True)
            ]
            compiled = len(_compilations())
            told = found.seconds, compiled > compiled_before, environment()
            compiled_before = compiled
            yield GenerationBatch(generations, *told), found.trace


@cache
def _compilations() -> list[str]:
    """Returns a list that grows with each program that JAX compiles, or reads from its cache."""
    found: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return found


def fingerprint(model: Model) -> str:
    """Names a model by its content: that of its files, or of its arrays where it has none."""
    if model.fingerprint is not None:
        return model.fingerprint
    digest = hashlib.sha256(repr(model.config).encode())
    for path, leaf in jax.tree.leaves_with_path(model.params):
        array = np.ascontiguousarray(leaf.blocks if isinstance(leaf, Tiles) else leaf)
        digest.update(f"{parameter_name(path)} {array.dtype} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8))
    return digest.hexdigest()[:32]
