"""Decodes the items of a task, judges the answers, and says how sure the score is.

    python -m experiments.evaluate task=word_problems task.seed=7 task.items=100 sampler=llada
    python -m experiments.evaluate -m task=yes_no,choices sampler=llada,threshold backend=xla,litert
    python -m experiments.evaluate sampler=threshold baseline=outputs/evaluate/llada
    python -m experiments.evaluate rescore=outputs/evaluate/llada

The run folder gets, besides what every run writes, `generations/`: every answer with its item and
all settings, from which `rescore` judges again without decoding. The same command on the same
folder (`hydra.run.dir`) goes on where an interrupted run stopped. `metrics.jsonl` has a line for
each item; `python -m experiments.report` makes a page with tables and pictures from many runs.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import hydra
import jax
import numpy as np
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from tqdm import tqdm

import llada_jax as lj
from experiments.answers import answer_items, batched
from experiments.results import ResultRow
from experiments.run import Run, launch
from llada_jax.backend.manifest import MANIFEST
from llada_jax.config import SamplerConfig, require
from llada_jax.evaluation.generations import Batch, Generation, GenerationStore
from llada_jax.evaluation.metrics import paired, wilson_interval
from llada_jax.evaluation.task import Item, Task
from llada_jax.evaluation.tasks import load_task, task_names

GENERATIONS = "generations"

# `task=<name>` for every task that there is.
for _task in map(load_task, task_names()):
    ConfigStore.instance().store(
        _task.name,
        {
            "name": _task.name,
            "seed": 0,
            "items": 500,
            "difficulty": _task.default_difficulty,
            "gen_length": _task.gen_length,
        },
        group="task",
    )


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

    def item(self, index: int) -> Item:
        return self.task.item(self.seed, index, "test", difficulty=self.difficulty)


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """What to decode, with what. The comments are in conf/evaluate.yaml."""

    model: str
    dtype: str | None = None
    task: TaskConfig
    sampler: SamplerConfig
    backend: str = "xla"
    seed: int = 0
    batch_size: int = 50
    baseline: str | None = None
    rescore: str | None = None

    def __post_init__(self) -> None:
        require(self.batch_size > 0, f"batch_size is {self.batch_size}; allowed: 1 or more")
        for name in ("baseline", "rescore"):
            folder = getattr(self, name)
            require(
                folder is None or (Path(folder) / GENERATIONS).is_dir(),
                f"{name} is {folder!r}, which has no {GENERATIONS}; "
                "allowed: the folder of a run of experiments.evaluate",
            )


class Judged(NamedTuple):
    """The generations of a decoder, and which of them are right."""

    settings: Mapping[str, Any]
    batches: list[Batch]
    right: dict[int, bool]  # by index of the item

    @property
    def generations(self) -> list[Generation]:
        return [generation for batch in self.batches for generation in batch.generations]

    @property
    def name(self) -> str:
        """`word_problems/threshold`, with the backend where it is another than the usual one."""
        parts = [self.settings["task"]["name"], self.settings["sampler_name"]]
        backend = self.settings["backend"]
        return "/".join(parts if backend == "xla" else [*parts, backend])


def evaluate(config: EvaluateConfig, run: Run) -> None:
    """Decodes what is not decoded yet, or reads what another run decoded; judges and compares."""
    baseline = judged(Path(config.baseline)) if config.baseline else None
    if config.rescore:
        found = judged(Path(config.rescore))
        run.begin()
    else:
        found = _decoded(config, run, baseline)
    rows = score_rows(found)
    if baseline:
        rows += comparison_rows(baseline, found)
    for generation in found.generations:
        run.record(_line(generation, found.right[generation.index]))
    run.finish(rows)


def judged(folder: Path, items: int | None = None) -> Judged:
    """The generations of a run, judged anew; with `items`, only of the first ones."""
    store = GenerationStore.load(folder / GENERATIONS)
    task = load_task(store.settings["task"]["name"])
    batches = store.batches()
    require(len(batches) > 0, f"{folder} has no generations yet; allowed: at least one batch")
    if items is not None:
        kept = ([g for g in batch.generations if g.index < items] for batch in batches)
        batches = [
            batch._replace(generations=generations)
            for batch, generations in zip(batches, kept, strict=True)
            if generations
        ]
    right = {g.index: task.verify(g.item, g.text) for batch in batches for g in batch.generations}
    return Judged(store.settings, batches, right)


def _decoded(config: EvaluateConfig, run: Run, baseline: Judged | None) -> Judged:
    model = lj.load(config.model, config.dtype)
    require(
        model.tokenizer is not None,
        f"model {config.model!r} has no tokenizer.json; allowed: one that has",
    )
    settings = settings_of(config, model)
    if baseline:
        _require_same_items(baseline, settings["task"], config.task.items)
    store = GenerationStore.begin(run.folder / GENERATIONS, settings)
    done = {generation.index for generation in store.generations()}
    run.begin()
    missing = [index for index in range(config.task.items) if index not in done]
    with tqdm(total=config.task.items, initial=len(done), unit="item", mininterval=1) as bar:
        for indices in batched(missing, config.batch_size):
            items = {index: config.task.item(index) for index in indices}
            store.add(
                answer_items(model, items, config.sampler, backend=config.backend, seed=config.seed)
            )
            bar.update(len(indices))
    return judged(run.folder, config.task.items)


def settings_of(config: EvaluateConfig, model: lj.Model) -> dict[str, Any]:
    """What the generations depend on; not how many there are, nor how many at a time."""
    task = config.task
    return {
        "model": config.model,
        "dtype": config.dtype,
        "fingerprint": fingerprint(model),
        "task": {
            "name": task.name,
            "version": task.task.version,
            "seed": task.seed,
            "difficulty": task.difficulty,
            "split": "test",
        },
        "sampler_name": sampler_name(),
        "sampler": asdict(config.sampler),
        "backend": config.backend,
        "seed": config.seed,
    }


def sampler_name() -> str:
    """The chosen sampler with what the command line changed in it: `threshold(threshold=0.8)`."""
    chosen = HydraConfig.get()
    changes = [
        each.removeprefix("sampler.")
        for each in chosen.overrides.task
        if each.startswith("sampler.")
    ]
    name = chosen.runtime.choices["sampler"]
    return f"{name}({', '.join(sorted(changes))})" if changes else name


def fingerprint(model: lj.Model) -> str:
    """Tells models apart by what is small in them: no two trainings end with the same norms."""
    digest = hashlib.sha256(repr(model.config).encode())
    if model.artifact is not None:
        digest.update((model.artifact / MANIFEST).read_bytes())
    for leaf in jax.tree.leaves(model.params):
        if leaf.ndim == 1:
            digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()[:16]


def score_rows(found: Judged) -> list[ResultRow]:
    """Quality and speed of one decoder."""
    generations, n = found.generations, len(found.right)
    right = sum(found.right.values())
    forwards = sum(generation.nfe for generation in generations)
    tokens = sum(generation.length for generation in generations)
    return [
        ResultRow(
            name=f"{found.name}/exact_match",
            value=right / n,
            unit="of items",
            n=n,
            interval=wilson_interval(right, n),
        ),
        ResultRow(name=f"{found.name}/nfe", value=forwards / n, unit="forwards", n=n),
        ResultRow(name=f"{found.name}/tpf", value=tokens / forwards, unit="tokens/forward", n=n),
        *_speed_rows(found),
    ]


def _speed_rows(found: Judged) -> Iterator[ResultRow]:
    """Answer tokens a second, of the batches that needed no compilation where there are such."""
    warm = [batch for batch in found.batches if not batch.compiled]
    name = "tokens_per_second" if warm else "tokens_per_second_with_compilation"
    timed = warm or found.batches
    tokens = sum(generation.length for batch in timed for generation in batch.generations)
    seconds = sum(batch.seconds for batch in timed)
    yield ResultRow(name=f"{found.name}/{name}", value=tokens / seconds, unit="tokens/s")


def comparison_rows(baseline: Judged, found: Judged) -> list[ResultRow]:
    """The difference to a baseline on the same items, and whether it could be chance."""
    _require_same_items(baseline, found.settings["task"], 0)
    indices = [index for index in found.right if index in baseline.right]
    require(len(indices) == len(found.right), f"the baseline has {len(indices)} of the items")
    result = paired([baseline.right[i] for i in indices], [found.right[i] for i in indices])
    name = f"{found.name}/against/{baseline.settings['sampler_name']}"
    return [
        ResultRow(
            name=f"{name}/difference",
            value=result.difference,
            unit="of items",
            n=len(indices),
            interval=result.interval,
        ),
        ResultRow(name=f"{name}/gained", value=result.gained, unit="items"),
        ResultRow(name=f"{name}/lost", value=result.lost, unit="items"),
        ResultRow(name=f"{name}/p_value", value=result.p_value, unit="McNemar, exact, two-sided"),
    ]


def _require_same_items(baseline: Judged, task: Mapping[str, Any], items: int) -> None:
    theirs = baseline.settings["task"]
    require(theirs == task, f"the baseline's task is {theirs}; allowed: the same items, {task}")
    lacking = [index for index in range(items) if index not in baseline.right]
    require(not lacking, f"the baseline lacks item {lacking[:1]} of {items}; allowed: all of them")


def _line(generation: Generation, is_right: bool) -> dict[str, Any]:
    return {
        "index": generation.index,
        "right": is_right,
        "target": generation.item.target,
        "length": generation.length,
        "nfe": generation.nfe,
    }


@hydra.main(version_base="1.3", config_path="../conf", config_name="evaluate")
def main(config: DictConfig) -> None:
    launch(evaluate, EvaluateConfig, config)


if __name__ == "__main__":
    main()
