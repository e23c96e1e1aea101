"""Measures the calibration of a model's confidence, on test answers with masked tokens.

    python -m experiments.reliability
    python -m experiments.reliability model=small items=200
    python -m experiments.reliability model=path/to/folder tasks=[word_problems] items=1000

Canvases are made and masked as in training by LLaDA's loss, whole or cut at the current block.
Predictions of an answer's tokens count, including its end token, but not the padding after it,
which is too easy. If `bins` is a multiple of 10, accuracy is also reported by band of confidence.
The run folder gets `reliability.png` in addition
to the files of every run.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import llada_jax as lj
from experiments.harness.pictures import reliability_diagrams, save
from experiments.harness.questions import prompts_of, tokenizer_of
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.config import ModelConfig, TrainConfig, require, require_counts, require_multiple
from llada_jax.evaluation.metrics import Reliability, reliability
from llada_jax.evaluation.task import Task
from llada_jax.evaluation.tasks import load_task
from llada_jax.model.finite import require_finite_results
from llada_jax.model.forward import forward
from llada_jax.model.params import ModelParams
from llada_jax.training.data import Example, TrainingBatch, batches
from llada_jax.training.loss import corrupt

CANVASES = {"whole": 0.0, "block": 1.0}  # share of canvases that are cut at a block

BANDS = (0.5, 0.7), (0.7, 0.9), (0.9, 1.0)
"""Bands of confidence. Revision can only repair tokens that were committed in the lower ones."""


@dataclass(frozen=True, kw_only=True)
class ReliabilityConfig:
    """Settings of the verb; conf/reliability.yaml explains each."""

    model: str
    tasks: tuple[str, ...]
    items: int = 500
    batch_size: int = 20
    seed: int = 3
    block_length: int = 32
    bins: int = 15

    def __post_init__(self) -> None:
        require(len(self.tasks) > 0, "tasks is empty; allowed: one or more")
        for name in self.tasks:
            _ = load_task(name)  # checks the name
        require_counts(self, "items", "batch_size", "block_length", "bins")
        require_multiple(self, "items", of="batch_size")


class Predictions(NamedTuple):
    """For each masked token, the probability of the most likely token, and whether it is right."""

    confidence: np.ndarray
    right: np.ndarray


def measure(config: ReliabilityConfig, run: Run) -> None:
    """Measures each task and all tasks together, on both kinds of canvases."""
    model = run.of(lj.load(config.model))
    _ = tokenizer_of(model)  # checks that there is one
    run.begin()
    diagrams = reliability_by_task(model, config)
    for name, diagram in diagrams.items():
        bins = zip(("counts", "confidence", "accuracy"), diagram[1:], strict=True)
        # JSON has no NaN
        plain = {key: np.where(np.isnan(values), None, values).tolist() for key, values in bins}
        run.record({"name": name, **plain})
    figure = reliability_diagrams({key: diagrams[f"all/{key}"] for key in CANVASES})
    save(figure, run.folder / "reliability.png")
    rows = []
    for name, diagram in diagrams.items():
        error, n = 100 * diagram.expected_calibration_error, int(diagram.counts.sum())
        rows.append(ResultRow(f"{name}/expected_calibration_error", error, "points", n=n))
        rows += _band_rows(name, diagram)
    run.finish(rows)


def _band_rows(name: str, diagram: Reliability) -> Iterator[ResultRow]:
    """Yields mean confidence and accuracy by band, if bins end at the bounds of bands."""
    if len(diagram.counts) % 10:
        return
    for low, high in BANDS:
        count, confidence, right = diagram.between(low, high)
        if count:
            band = f"{name}/{low}_to_{high}"
            yield ResultRow(f"{band}/confidence", confidence, "mean", n=count)
            yield ResultRow(f"{band}/right", right, "of tokens", n=count)


def reliability_by_task(model: lj.Model, config: ReliabilityConfig) -> dict[str, Reliability]:
    """Returns diagrams by `<task>/<canvas>`, and `all/<canvas>` for all tasks together."""
    predictions = {
        f"{name}/{canvas}": _predictions(model, load_task(name), share, config)
        for name in tqdm(config.tasks, unit="task")
        for canvas, share in CANVASES.items()
    }
    for canvas in CANVASES:
        predictions[f"all/{canvas}"] = _joined(
            predictions[f"{name}/{canvas}"] for name in config.tasks
        )
    return {name: reliability(*parts, config.bins) for name, parts in predictions.items()}


def _joined(parts: Iterable[Predictions]) -> Predictions:
    return Predictions(*map(np.concatenate, zip(*parts, strict=True)))


def _predictions(
    model: lj.Model, task: Task, block_share: float, config: ReliabilityConfig
) -> Predictions:
    masks = jax.random.key(config.seed)
    drawn = enumerate(_batches(model, task, block_share, config))
    return _joined(_predict(model, jax.random.fold_in(masks, step), b) for step, b in drawn)


def _batches(
    model: lj.Model, task: Task, block_share: float, config: ReliabilityConfig
) -> Iterator[TrainingBatch]:
    tokenizer = tokenizer_of(model)
    assert model.config.eos_id is not None
    end = tokenizer.encode("<|eot_id|>")

    def example(index: int) -> Example:
        item = task.item(config.seed, index, "test")
        (prompt,) = prompts_of(model, [item.question])
        return Example(prompt, [*tokenizer.encode(item.answer), *end])

    steps = config.items // config.batch_size
    canvases = TrainConfig(
        seed=config.seed,
        steps=steps,
        warmup_steps=0,
        decay_steps=0,
        batch_size=config.batch_size,
        group_steps=1,  # else the last batch would be items of other numbers
        block_length=config.block_length,
        max_gen_length=task.gen_length,
        block_share=block_share,
        cut_share=1.0,
    )
    return islice(batches(example, canvases, model.config.eos_id), steps)


def _predict(model: lj.Model, key: jax.Array, batch: TrainingBatch) -> Predictions:
    assert model.config.mask_id is not None
    corruption = corrupt(key, batch, model.config.mask_id, TrainConfig.min_mask_probability)
    token, confidence = _most_likely(model.params, model.config, corruption.tokens, batch.live)
    require_finite_results("the model's confidence", confidence)
    counted = np.asarray(corruption.masked & (batch.tokens != model.config.eos_id))
    right = np.asarray(token == batch.tokens)
    return Predictions(np.asarray(confidence)[counted], right[counted])


@partial(jax.jit, static_argnums=1)
def _most_likely(
    params: ModelParams, model: ModelConfig, tokens: jax.Array, live: jax.Array
) -> tuple[jax.Array, jax.Array]:
    probability = jax.nn.softmax(forward(params, model, tokens, live=live), axis=-1)
    return jnp.argmax(probability, axis=-1), probability.max(axis=-1)


main = entry_point("reliability", measure, ReliabilityConfig)
