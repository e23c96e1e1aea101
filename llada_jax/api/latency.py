"""The time of a step on this machine, by its rows."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from llada_jax.api.denoisers import backend_denoiser
from llada_jax.api.model import Model
from llada_jax.backend.protocol import Backend
from llada_jax.config import LatencyTable, ascending_counts, require
from llada_jax.model.finite import require_finite_results
from llada_jax.model.head import ScoreRules
from llada_jax.rows import make_rows
from llada_jax.types import KVCache, Params, Rows, Scores


def latency_table(
    model: Model,
    rows: Sequence[int],
    *,
    canvas: int = 256,
    backend: str | Backend = "xla",
    repeats: int = 10,
) -> LatencyTable:
    """Measures the median milliseconds of a step by its number of rows, for
    `SamplerConfig.latency_table`. All rows are scored.

    Args:
      rows: buckets, ascending, at most `canvas`.
      canvas: positions; the rows are the last ones, and read the others from the cache.
      backend: as in `generate`.
      repeats: times that each bucket runs, after a first time, which compiles.

    Raises:
      ValueError: one message that names the bad value and the allowed ones, before any computation.
      FloatingPointError: the model's scores are NaN or infinite.
    """
    buckets = ascending_counts("rows", rows)
    model.config.require_room("canvas", canvas)
    require(buckets[-1] <= canvas, f"rows is {list(buckets)}; allowed: up to canvas ({canvas})")
    require(repeats > 0, f"repeats is {repeats}; allowed: 1 or more")
    denoiser = backend_denoiser(model, backend, ScoreRules(spread=False))

    def step(params: Params, rows: Rows, cache: KVCache) -> Scores:
        return denoiser.score_rows(params, denoiser.forward_rows(params, rows, cache).hidden, None)

    cache = denoiser.empty_cache(model.params, 1, canvas)
    run = jax.jit(step) if denoiser.traceable else step
    vocab = model.config.vocab_size
    steps = [partial(run, model.params, _last_rows(n, canvas, vocab), cache) for n in buckets]
    for n, run_step in zip(buckets, steps, strict=True):
        require_finite_results(f"the model's confidence in {n} rows", run_step().confidence)
    # By turns, so that other load on the machine affects all of them.
    times = [list(map(_milliseconds, steps)) for _ in range(repeats)]
    return LatencyTable(rows=buckets, ms=tuple(map(median, zip(*times, strict=True))))


def _last_rows(count: int, canvas: int, vocab_size: int) -> Rows:
    positions = jnp.arange(canvas - count, canvas, dtype=jnp.int32)[None]
    cached = jnp.arange(canvas) < canvas - count
    # Different tokens, so that routed experts share the work as they do in a text.
    tokens, live = positions % vocab_size, jnp.ones(positions.shape, bool)
    return make_rows(tokens, positions, live, cached[None])


def _milliseconds(step: Callable[[], Any]) -> float:
    began = time.perf_counter()
    jax.block_until_ready(step())
    return 1e3 * (time.perf_counter() - began)
