"""Decisions that number formats flip, on random logits and on a model's own."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import llada_jax as lj
from experiments.harness.results import ResultRow
from llada_jax.config import require, require_counts
from llada_jax.evaluation.tasks import word_problems
from llada_jax.model.finite import require_finite_results
from llada_jax.sampling_engine.agreement import Flips, flips_of, random_inputs
from llada_jax.sampling_engine.formats import LogitFormat, StoredLogits
from llada_jax.sampling_engine.host import store_logits
from llada_jax.sampling_engine.memories import EngineConfig, ScalarFormat
from llada_jax.sampling_engine.programs import compile_sampler
from llada_jax.sampling_engine.reference import Decisions, StepInputs, reference_sampler
from llada_jax.sampling_engine.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class FlipsConfig:
    """What to count flips on. The comments are in conf/sampling_engine.yaml."""

    batch: int = 8
    k: int = 8
    formats: tuple[LogitFormat, ...] = ("float32", "bfloat16", "mx_e4m3", "mx_e3m4")
    scalars: tuple[ScalarFormat, ...] = ("float32", "bfloat16", "float16")
    model: str = "tiny"
    steps: int = 8

    def __post_init__(self) -> None:
        require_counts(self, "batch", "k", "steps")


class Case(NamedTuple):
    """One step's inputs, and what the reference decides."""

    sampling: Sampling
    inputs: StepInputs
    wanted: Decisions


def flip_rows(
    config: FlipsConfig, vocab: int, rows: int, vlens: tuple[int, ...], seed: int
) -> Iterator[ResultRow]:
    """Counts flips per format of the logits, on BF16 vectors.

    `flips/<format>` is on random logits, at the longest vectors with float32 scalars, and chooses
    by confidence as published; `odds` is ours.
    """
    sampling = Sampling(batch=config.batch, rows=rows, vocab=vocab, mode="one_pass")
    inputs = random_inputs(seed, 1, config.batch, rows, vocab, config.k)
    chance = [Case(sampling, inputs, reference_sampler(sampling, inputs))]
    model = load_model(config)
    real = model_cases(model, config, rows, seed)
    longest = EngineConfig(vlen=vlens[-1])
    for format in config.formats:
        of_model = (f"{format}/{config.model}", real, model.fingerprint)
        for name, cases, fingerprint in ((format, chance, None), of_model):
            row, stored = partial(_row, fingerprint), _stored(cases, longest.vlen, format)
            flips = _flips(cases, stored, longest)
            yield row(f"flips/{name}", flips)
            yield row(f"flips/{name}/tokens", flips, flips.tokens)
            yield row(f"flips/{name}/masks", flips, flips.masks)
            by_odds = [case._replace(sampling=replace(case.sampling, key="odds")) for case in cases]
            yield row(f"flips/{name}/odds", _flips(by_odds, stored, longest))
        for vlen in vlens:
            stored = _stored(chance, vlen, format)
            for scalar in config.scalars:
                engine = EngineConfig(vlen=vlen, scalar_format=scalar)
                name = f"flips/{format}/scalars_{scalar}/vlen{vlen}"
                yield _row(None, name, _flips(chance, stored, engine))


def _stored(cases: list[Case], vlen: int, format: LogitFormat) -> list[StoredLogits]:
    return [store_logits(case.sampling, vlen, case.inputs.logits, format) for case in cases]


def _flips(cases: list[Case], stored: list[StoredLogits], engine: EngineConfig) -> Flips:
    counts = [
        flips_of(compile_sampler(case.sampling, engine), case.inputs, hbm, case.wanted)
        for case, hbm in zip(cases, stored, strict=True)
    ]
    return Flips(*(sum(column) for column in zip(*counts, strict=True)))


def _row(fingerprint: str | None, name: str, flips: Flips, count: int | None = None) -> ResultRow:
    share = flips.share if count is None else count / flips.positions
    return ResultRow(name, share, "of decisions", n=flips.positions, fingerprint=fingerprint)


def load_model(config: FlipsConfig) -> lj.Model:
    """Returns the model whose logits are sampled. Raises ValueError for one without a tokenizer."""
    model = lj.load(config.model)
    require(
        model.tokenizer is not None,
        f"flips.model {config.model!r} has no tokenizer; allowed: a model with one",
    )
    return model


def model_cases(model: lj.Model, config: FlipsConfig, rows: int, seed: int) -> list[Case]:
    """Returns every step of blocks that the reference decodes: answers to held-out problems."""
    mask_id = model.config.mask_id
    prompts = _prompts_of_one_length(model, config.batch, seed)
    length = prompts.shape[1]
    canvas = np.pad(prompts, ((0, 0), (0, rows)), constant_values=mask_id)
    quota = np.full((1, config.batch), -(-rows // config.steps), np.int32)
    sampling = Sampling(
        batch=config.batch, rows=rows, vocab=model.config.vocab_size, mode="one_pass"
    )
    cases = []
    for _ in range(config.steps):
        logits = np.array(lj.forward(model, jnp.asarray(canvas)))[:, length:]
        require_finite_results("the model's logits", logits)
        logits[..., mask_id] = -np.inf
        block = canvas[:, length:].copy()
        inputs = StepInputs(logits[None], block, block == mask_id, quota)
        wanted = reference_sampler(sampling, inputs)
        cases.append(Case(sampling, inputs, wanted))
        canvas[:, length:] = wanted.tokens
    return cases


def _prompts_of_one_length(model: lj.Model, batch: int, seed: int) -> np.ndarray:
    """Returns the first held-out problems [batch, length] that have one length."""
    assert model.tokenizer is not None
    by_length: defaultdict[int, list[list[int]]] = defaultdict(list)
    for problem in word_problems.TASK.items(seed, "test"):
        prompt = model.tokenizer.encode_chat([{"role": "user", "content": problem.question}])
        alike = by_length[len(prompt)]
        alike.append(prompt)
        if len(alike) == batch:
            return np.array(alike, np.int32)
    raise AssertionError("items have no end")
