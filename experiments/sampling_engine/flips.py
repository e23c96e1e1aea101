"""Decisions that number formats flip, against float32 throughout: random logits, and a model's."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import jax.numpy as jnp
import numpy as np

import llada_jax as lj
from experiments.harness.questions import prompts_of
from experiments.harness.results import ResultRow
from experiments.sampling_engine.format_costs import decided
from llada_jax.config import require_counts
from llada_jax.evaluation.tasks import word_problems
from llada_jax.sampling_engine.formats import LogitFormat
from llada_jax.sampling_engine.host import Decisions, StepInputs


@dataclass(frozen=True, kw_only=True)
class FlipsConfig:
    """What to count flips on. The comments are in conf/sampling_engine.yaml."""

    batch: int = 8
    k: int = 8
    formats: tuple[LogitFormat, ...] = ("float32", "bfloat16", "mx_e4m3")
    model: str = "tiny"
    steps: int = 8

    def __post_init__(self) -> None:
        require_counts(self, "batch", "k", "steps")


def flip_rows(
    config: FlipsConfig, vocab: int, rows: int, vlen: int, seed: int
) -> Iterator[ResultRow]:
    """Counts flips per format of the logits, on BF16 vectors: other tokens, or other commits.

    `flips/<format>` is on random logits, and `flips/<format>/<model>` on those of a model.
    """
    model = lj.load(config.model)
    drawn = random_inputs(seed, config.batch, rows, vocab, config.k)
    chance = [(drawn, decided(drawn, vlen))]
    real = list(decoded(model, config, rows, vlen, seed))
    for format in config.formats:
        for source, cases in (("", chance), (f"/{config.model}", real)):
            flipped = np.concatenate([_flips(*each, vlen, format) for each in cases])
            name, named = f"flips/{format}{source}", model.fingerprint if source else None
            yield ResultRow(name, flipped.mean(), "of decisions", n=flipped.size, fingerprint=named)


def _flips(inputs: StepInputs, wanted: Decisions, vlen: int, format: LogitFormat) -> np.ndarray:
    """Returns which open positions have another token or another mask than wanted."""
    found = decided(inputs, vlen, format, "bfloat16")
    flipped = found.predictions != wanted.predictions
    return (flipped | (found.transfer != wanted.transfer))[inputs.open]


def decoded(
    model: lj.Model, config: FlipsConfig, rows: int, vlen: int, seed: int
) -> Iterator[tuple[StepInputs, Decisions]]:
    """Yields every step of blocks that the engine decodes in float32: answers to held-out problems,
    of which the longer ones lose their begin."""
    mask_id = model.config.mask_id
    items = islice(word_problems.TASK.items(seed, "test"), config.batch)
    prompts = prompts_of(model, (item.question for item in items))
    length = min(map(len, prompts))
    canvas = np.full((config.batch, length + rows), mask_id, np.int32)
    canvas[:, :length] = [prompt[-length:] for prompt in prompts]
    k = np.full(config.batch, -(-rows // config.steps), np.int32)
    for _ in range(config.steps):
        logits = np.array(lj.forward(model, jnp.asarray(canvas)))[:, length:]
        logits[..., mask_id] = -np.inf
        block = canvas[:, length:].copy()
        inputs = StepInputs(logits, block, block == mask_id, k)
        wanted = decided(inputs, vlen)
        yield inputs, wanted
        canvas[:, length:] = wanted.tokens


def random_inputs(seed: int, batch: int, rows: int, vocab: int, k: int) -> StepInputs:
    """Draws logits of rows that are more or less sure: normal noise, and one id that stands out.

    How far it stands out is uniform, so that confidences fill the range from 0 to 1.
    """
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((batch, rows, vocab), dtype=np.float32)
    best = rng.integers(0, vocab, (batch, rows, 1))
    height = np.log(vocab) + rng.uniform(-4, 6, best.shape)
    np.put_along_axis(logits, best, height.astype(np.float32), axis=-1)
    block = (batch, rows)
    return StepInputs(
        logits=logits,
        tokens=np.full(block, vocab - 1, np.int32),
        open=np.ones(block, bool),
        k=np.full(batch, k, np.int32),
    )
