"""Decisions that number formats flip, against float32 throughout, on random logits."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from experiments.harness.results import ResultRow
from experiments.sampling_engine.format_costs import KEYS
from llada_jax.config import require_counts
from llada_jax.sampling_engine.formats import LogitFormat
from llada_jax.sampling_engine.host import Decisions, StepInputs, run_sampler, store_logits
from llada_jax.sampling_engine.memories import EngineConfig
from llada_jax.sampling_engine.programs import compile_sampler
from llada_jax.sampling_engine.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class FlipsConfig:
    """What to count flips on. The comments are in conf/sampling_engine.yaml."""

    batch: int = 8
    k: int = 8
    formats: tuple[LogitFormat, ...] = ("float32", "bfloat16", "mx_e4m3", "mx_e3m4")

    def __post_init__(self) -> None:
        require_counts(self, "batch", "k")


def flip_rows(
    config: FlipsConfig, vocab: int, rows: int, vlen: int, seed: int
) -> Iterator[ResultRow]:
    """Counts flips per format of the logits, on BF16 vectors: other tokens, or other commits.

    `flips/<format>` chooses by confidence as published; `odds` is ours.
    """
    inputs = random_inputs(seed, config.batch, rows, vocab, config.k)

    def decided(format: LogitFormat, engine: EngineConfig, **key) -> Decisions:
        sampling = Sampling(batch=config.batch, rows=rows, vocab=vocab, mode="one_pass", **key)
        hbm = store_logits(sampling, vlen, inputs.logits, format)
        return run_sampler(compile_sampler(sampling, engine), inputs, hbm)

    wanted = decided("float32", EngineConfig(vlen=vlen, vector_format="float32"))
    for format in config.formats:
        for key in KEYS:
            found = decided(format, EngineConfig(vlen=vlen), key=key)
            flipped = found.predictions != wanted.predictions
            flipped |= found.transfer != wanted.transfer
            name = f"flips/{format}" if key == "confidence" else f"flips/{format}/{key}"
            yield ResultRow(name, flipped.mean(), "of decisions", n=flipped.size)


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
