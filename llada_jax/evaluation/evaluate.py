"""Evaluates a decoder on a task: decodes its items, stores the answers and grades them.

    result = lj.evaluate(model, "yes_no", "llada_cpp", items=100, folder="outputs/yes_no")
    result.score, result.interval, result.nfe, result.tpf
    lj.compare(model, {"slow": slow, "fast": fast}, "yes_no", items=100)  # a table

Items are decoded in one stream with `places` batch slots, but stored in batches of `batch_size`
consecutive items, so that an interrupted run resumes after the last complete batch and an item's
answer does not depend on the number of slots.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice, product
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import numpy as np
from tqdm import tqdm

from llada_jax.api.decoding import ResultStream, generate_stream
from llada_jax.api.loading import load
from llada_jax.api.model import Model
from llada_jax.config import Loop, require, require_counts
from llada_jax.evaluation.comparison import Comparison
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
from llada_jax.evaluation.prompts import Prompts
from llada_jax.evaluation.task import Task, TaskItems
from llada_jax.evaluation.tasks import load_task
from llada_jax.model.mesh import mesh_of
from llada_jax.model.params import parameter_name
from llada_jax.revision.tiles import Tiles
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.trace import Trace
from llada_jax.text import TOKENIZER_SOURCES

PLACES = 8
"""Default number of batch slots."""


def evaluate(
    model: Model | str | os.PathLike[str],
    task: str | Task = "word_problems",
    sampler: str | SamplerConfig = "llada",
    *,
    items: int = 100,
    seed: int = 0,
    difficulty: int | None = None,
    prompts: Prompts = "plain",
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
      model: A loaded model, or an argument of `llada_jax.load`.
      task: A name from `llada_jax.evaluation.tasks.task_names()`, or a custom `Task`.
      sampler: A preset, which gets the task's answer length, or a configuration, used unchanged.
      items: Number of items; if several ask the same question, the score counts the first.
      seed: Seed of the sequence of items.
      difficulty: Default: the task's.
      prompts: How the questions are asked (`llada_jax.evaluation.prompts`): `plain` is the question
        alone, `held_out` has wordings that training never draws.
      folder: Where answers and traces are stored. The same call resumes an interrupted run, and a
        call with more items decodes only the new ones. Answers equal an uninterrupted run's;
        confidences in traces may differ by rounding (`Trace`). Default: memory only.
      baseline: An evaluation of the same items, or its folder, for `Evaluation.against`.
      backend, refresh_on, loop: As in `llada_jax.generate`.
      sampling_seed: An item is sampled with this seed plus the item's index.
      batch_size: Items that are stored together.
      places: Items that are decoded at the same time; does not change any answer.
      progress: Show a progress bar.

    Raises ValueError or FileNotFoundError that names the bad value and what is allowed, before
    anything is decoded; also if the folder has other settings or is damaged.
    """
    task = load_task(task) if isinstance(task, str) else task
    trial = Trial(
        model=model if isinstance(model, Model) else load(model),
        items=TaskItems(task=task, count=items, seed=seed, difficulty=difficulty, prompts=prompts),
        sampler_name=sampler if isinstance(sampler, str) else "custom",
        sampler=_for_task(sampler, task),
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
    store = GenerationMemory(trial.settings) if folder is None else trial.store(Path(folder))
    evaluation = trial.run(store, progress)
    return evaluation if baseline is None else evaluation.compared_with(baseline)


def compare(
    model: Model | str | os.PathLike[str] | Mapping[str, Model | str | os.PathLike[str]],
    sampler: str | SamplerConfig | Mapping[str, str | SamplerConfig],
    task: str | Task = "word_problems",
    *,
    items: int = 100,
    seed: int = 0,
    difficulty: int | None = None,
    backend: str = "xla",
    loop: Loop | None = None,
    sampling_seed: int = 0,
    places: int = PLACES,
    progress: bool = True,
) -> Comparison:
    """Scores several decoders on the same items of a task, and compares each with the first.

    Args:
      model: As in `evaluate`, or several models by name.
      sampler: As in `evaluate`, or several samplers by name. Each model is combined with each
        sampler, model by model.
      The others: as in `evaluate`, without a folder. To compare stored evaluations, make a
        `Comparison` of them.

    Raises ValueError or FileNotFoundError as `evaluate`, before any decoder runs.
    """
    task = load_task(task) if isinstance(task, str) else task
    task_items = TaskItems(task=task, count=items, seed=seed, difficulty=difficulty)
    samplers = sampler if isinstance(sampler, Mapping) else {"": sampler}
    samplers = {name: _for_task(sampler, task) for name, sampler in samplers.items()}
    models = model if isinstance(model, Mapping) else {"": model}
    models = {name: m if isinstance(m, Model) else load(m) for name, m in models.items()}
    trials = [
        Trial(
            model=models[of_model],
            items=task_items,
            sampler_name=": ".join(filter(None, (of_model, of_sampler))),
            sampler=samplers[of_sampler],
            backend=backend,
            loop=loop,
            seed=sampling_seed,
            places=places,
        )
        for of_model, of_sampler in product(models, samplers)
    ]
    for trial in trials:
        trial.stream([0])  # checks that the model can use the sampler
    return Comparison(
        {t.sampler_name: t.run(GenerationMemory(t.settings), progress) for t in trials}
    )


def _for_task(sampler: str | SamplerConfig, task: Task) -> SamplerConfig:
    """Returns a preset with the task's answer length, and a configuration unchanged."""
    if isinstance(sampler, str):
        return with_answer_length(SamplerConfig.preset(sampler), task)
    return sampler


def with_answer_length(sampler: SamplerConfig, task: Task) -> SamplerConfig:
    """Returns the sampler with the task's answer length, at one token a step where steps count."""
    return sampler.replace(gen_length=task.gen_length, steps=task.gen_length)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run of one decoder on the items of a task; the fields are arguments of `evaluate`. Raises
    ValueError for a model without a tokenizer, and for counts below 1."""

    model: Model
    dtype: str | None = None
    items: TaskItems
    sampler_name: str
    """Name of the decoder in stored settings, as `dtype` is the stored name of the precision."""
    sampler: SamplerConfig
    backend: str = "xla"
    refresh_on: Model | None = None
    loop: Loop | None = None
    seed: int = 0
    """The `sampling_seed`: an item is sampled with this seed plus the item's index."""
    batch_size: int = 50
    places: int = PLACES

    def __post_init__(self) -> None:
        require_counts(self, "batch_size", "places")
        require(
            self.model.tokenizer is not None,
            f"model {self.model.source or 'model'!r} has no tokenizer; allowed: one with "
            f"{TOKENIZER_SOURCES}",
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Returns everything that the answers depend on, as plain JSON. The number of slots is not
        included, because answers do not depend on it."""
        mesh = mesh_of(self.model.params)
        on_mesh = {} if mesh is None else {"mesh": dict(mesh.shape)}
        models = [model for model in (self.model, self.refresh_on) if model is not None]
        leaves = jax.tree.leaves([model.params for model in models])
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
        """Opens the store in the folder of a run, with the answers of an interrupted run. Raises
        ValueError if its settings differ or a file is damaged."""
        store = GenerationStore.begin(folder / GENERATIONS, self.settings)
        _ = store.generations()
        return store

    def run(self, store: GenerationStore | GenerationMemory, progress: bool = True) -> Evaluation:
        """Decodes the items that the store lacks, and grades all of them."""
        self.fill(store, ALONE, progress)
        store.reach(self.items.count)
        return graded(store, self.items.task, self.items.count)

    def fill(
        self, store: GenerationStore | GenerationMemory, worker: Worker, progress: bool = True
    ) -> int:
        """Decodes a worker's items that the store lacks, and returns their number. Batches begin at
        multiples of `batch_size` even if some of their items exist already."""
        done = {generation.index for generation in store.generations()}
        assigned = [i for i in range(self.items.count) if worker.takes(i // self.batch_size)]
        missing = [index for index in assigned if index not in done]
        with tqdm(
            desc=f"{self.items.task.name}, {self.sampler_name}",
            total=len(assigned),
            initial=len(assigned) - len(missing),
            mininterval=1,
            disable=not progress,
        ) as bar:
            for batch, trace in self.answers(missing) if missing else ():
                store.add(batch, trace)
                bar.update(len(batch.generations))
        return len(missing)

    def stream(self, indices: Sequence[int]) -> ResultStream:
        """Returns the stream that decodes items, with a result for each batch. Raises ValueError as
        `generate_stream`, when it is called."""
        assert self.model.tokenizer is not None
        chats = map(self.items.chat, indices)
        return generate_stream(
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

    def answers(self, indices: Sequence[int]) -> Iterator[tuple[GenerationBatch, Trace]]:
        """Decodes items in one stream, and yields them in batches, in order. An answer ends with
        its first token that ends a text or a turn."""
        compiled_before = len(_compilations())
        remaining = ((index, self.items.item(index)) for index in indices)
        for result in self.stream(indices):
            in_batch = islice(remaining, len(result.nfe))
            columns = (in_batch, result.text, result.generated, result.answers, result.nfe)
            generations = [  # the length of an answer includes the token that ends it
                Generation(*item, text, ids.tolist(), min(len(answer) + 1, len(ids)), int(nfe))
                for item, text, ids, answer, nfe in zip(*columns, strict=True)
            ]
            has_compiled = len(_compilations()) > compiled_before
            compiled_before = len(_compilations())
            batch = GenerationBatch(generations, result.seconds, has_compiled, environment())
            yield batch, result.trace


@cache
def _compilations() -> list[str]:
    """Returns a list that gets an entry for each program that JAX compiles or reads from its
    compilation cache: batches that include such time are no measurements of speed."""
    events: list[str] = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return events


def fingerprint(model: Model) -> str:
    """Returns a hash of the model's files, or of its arrays if it was not loaded from files."""
    if model.fingerprint is not None:
        return model.fingerprint
    digest = hashlib.sha256(repr(model.config).encode())
    for path, leaf in jax.tree.leaves_with_path(model.params):
        array = np.ascontiguousarray(leaf.blocks if isinstance(leaf, Tiles) else leaf)
        digest.update(f"{parameter_name(path)} {array.dtype} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8))
    return digest.hexdigest()[:32]
