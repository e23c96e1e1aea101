"""How long steps take on a backend, by their rows."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from llada_jax.config import LatencyTable
from llada_jax.model.finite import require_finite_results
from llada_jax.rows import make_rows
from llada_jax.types import Denoiser, KVCache, Params, Rows, Scores


def time_steps(
    denoiser: Denoiser,
    params: Params,
    rows: Sequence[int],
    *,
    canvas: int,
    vocab_size: int,
    repeats: int,
) -> LatencyTable:
    """Times forwards of the last rows of a canvas, each of which is scored: median milliseconds.

    Args:
      rows: ascending, at most `canvas`. They take turns, so that a busy moment hits all of them.
      repeats: after a first step, which compiles.

    Raises FloatingPointError where its scores are NaN or infinite.
    """

    def step(params: Params, rows: Rows, cache: KVCache) -> Scores:
        return denoiser.score_rows(params, denoiser.forward_rows(params, rows, cache).hidden, None)

    cache = denoiser.empty_cache(params, 1, canvas)
    run = jax.jit(step) if denoiser.traceable else step
    steps = [partial(run, params, _last_rows(n, canvas, vocab_size), cache) for n in rows]
    for n, each in zip(rows, steps, strict=True):
        require_finite_results(f"the model's confidence in {n} rows", each().confidence)
    times = [list(map(_milliseconds, steps)) for _ in range(repeats)]
    return LatencyTable(rows=tuple(rows), ms=tuple(map(median, zip(*times, strict=True))))


def _last_rows(count: int, canvas: int, vocab_size: int) -> Rows:
    positions = jnp.arange(canvas - count, canvas, dtype=jnp.int32)[None]
    cached = jnp.arange(canvas) < canvas - count
    # Different tokens, so that routed experts share the work as they do in a text.
    return make_rows(
        positions % vocab_size, positions, jnp.ones(positions.shape, bool), cached[None]
    )


def _milliseconds(step: Callable[[], Any]) -> float:
    began = time.perf_counter()
    jax.block_until_ready(step())
    return 1e3 * (time.perf_counter() - began)
