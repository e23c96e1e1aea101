"""The cost of narrow number formats in the sampling engine, against float32.

Two measures: the share of decisions that change, on random logits and on a model's, and the exact
match of answers that are decoded with the engine's scores.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import llada_jax as lj
from experiments.harness.questions import prompts_of, tokenizer_of
from experiments.harness.results import ResultRow, share_row
from llada_jax.api.denoisers import denoiser_for, score_rules
from llada_jax.config import require_counts
from llada_jax.evaluation.tasks import load_task, word_problems
from llada_jax.model.head import ScoreRules, logits_of, without
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.generate import decode
from llada_jax.sampler.prompts import with_ids
from llada_jax.sampling_engine.formats import LogitFormat, bits_per_element
from llada_jax.sampling_engine.host import Decisions, StepInputs, decide, random_inputs
from llada_jax.types import Denoiser, Scores

VLEN, BATCH, TOKENS_PER_STEP = 1024, 16, 4


@dataclass(frozen=True, kw_only=True)
class FlipsConfig:
    """Settings of the verb; conf/sampling_engine.yaml explains each."""

    batch: int = 8
    k: int = 8
    formats: tuple[LogitFormat, ...] = ("float32", "bfloat16", "mx_e4m3")
    model: str = "tiny"
    steps: int = 8

    def __post_init__(self) -> None:
        require_counts(self, "batch", "k", "steps")


@dataclass(frozen=True, kw_only=True)
class AnswersConfig:
    """Settings of the verb; conf/sampling_engine.yaml explains each."""

    items: int = 0
    model: str = "small"
    tasks: tuple[str, ...] = ("word_problems", "yes_no", "choices", "sudoku", "countdown")

    def __post_init__(self) -> None:
        require_counts(self, "items", least=0)
        for task in self.tasks:
            _ = load_task(task)  # checks the name


def answer_rows(
    config: AnswersConfig, formats: tuple[LogitFormat, ...], seed: int
) -> Iterator[ResultRow]:
    """Yields the exact match of each format, and the bytes of one logit."""
    model = lj.load(config.model, "float32")
    row = partial(share_row, unit="of items", fingerprint=model.fingerprint)
    for format in formats:
        name, right = f"answers/{format}", 0
        yield ResultRow(f"{name}/bytes_a_logit", bits_per_element(format) / 8, "bytes")
        for task in config.tasks:
            n_right = _right_answers(model, task, config, format, seed)
            right += n_right
            yield row(f"{name}/{task}", n_right, config.items)
        yield row(f"{name}/all", right, config.items * len(config.tasks))


def _right_answers(
    model: lj.Model, name: str, config: AnswersConfig, format: LogitFormat, seed: int
) -> int:
    task, tokenizer = load_task(name), tokenizer_of(model)
    length = task.gen_length
    sampler = SamplerConfig.from_flat(
        gen_length=length, block_length=32, steps=length // TOKENS_PER_STEP,
        cache="blockwise", eos_early_stop=True,
    )  # fmt: skip
    sampler = with_ids(sampler, model.config)
    items = list(islice(task.items(seed, "test"), config.items))
    rules = score_rules(sampler)
    plain = denoiser_for(model.config, rules)
    scores = partial(engine_scores, format=format, rules=rules)
    denoiser = Denoiser(plain.forward_rows, scores, plain.empty_cache, traceable=False)
    right = 0
    for first in range(0, len(items), BATCH):
        batch = items[first : first + BATCH]
        prompts = prompts_of(model, (item.question for item in batch))
        result = decode(denoiser, model.params, model.config, prompts, sampler, loop="host")
        texts = [tokenizer.decode(ids) for ids in result.generated]
        right += sum(map(task.verify, batch, texts))
    return right


def engine_scores(
    params: Any, hidden: jax.Array, noise: Any, *, format: LogitFormat, rules: ScoreRules
) -> Scores:
    """Returns the engine's tokens and confidences for states [B, C, D]; entropy and margin are NaN.
    Vectors are float32 for float32 logits, and BF16 for every narrower format."""
    logits = np.asarray(without(logits_of(params, hidden), rules.forbidden))
    block = np.zeros(logits.shape[:2], np.int32)
    inputs = StepInputs(logits, block, block == 0, np.zeros(len(block), np.int32))
    decisions = decide(inputs, VLEN, format, "float32" if format == "float32" else "bfloat16")
    unknown = jnp.full(block.shape, jnp.nan)
    return Scores(jnp.asarray(decisions.predictions), jnp.asarray(decisions.keys), unknown, unknown)


def flip_rows(
    config: FlipsConfig, vocab: int, rows: int, vlen: int, seed: int
) -> Iterator[ResultRow]:
    """Yields the share of changed tokens or commits by format of the logits, on BF16 vectors:
    `flips/<format>` on random logits, `flips/<format>/<model>` on a model's."""
    model = lj.load(config.model)
    inputs = random_inputs(seed, config.batch, rows, vocab, config.k)
    chance = [(inputs, decide(inputs, vlen))]
    real = list(decoded(model, config, rows, vlen, seed))
    for format in config.formats:
        for source, cases in (("", chance), (f"/{config.model}", real)):
            flipped = np.concatenate([_flips(*case, vlen, format) for case in cases])
            name, named = f"flips/{format}{source}", model.fingerprint if source else None
            yield ResultRow(name, flipped.mean(), "of decisions", n=flipped.size, fingerprint=named)


def _flips(inputs: StepInputs, wanted: Decisions, vlen: int, format: LogitFormat) -> np.ndarray:
    """Returns for each open position whether its token or its commit differs from `wanted`."""
    decisions = decide(inputs, vlen, format, "bfloat16")
    flipped = decisions.predictions != wanted.predictions
    return (flipped | (decisions.transfer != wanted.transfer))[inputs.open]


def decoded(
    model: lj.Model, config: FlipsConfig, rows: int, vlen: int, seed: int
) -> Iterator[tuple[StepInputs, Decisions]]:
    """Yields every step of blocks that the engine decodes in float32: answers to held-out problems,
    cut at the beginning if they are too long."""
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
        wanted = decide(inputs, vlen)
        yield inputs, wanted
        canvas[:, length:] = wanted.tokens
