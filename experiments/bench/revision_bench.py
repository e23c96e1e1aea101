"""The suite `revision`: a few rows through one layer, over tiles and over float32 weights.

Three forwards of the same rows against the same cache take turns: `forward_rows` on the dequantized
weights, in float32; over tiles; and `forward_rows` on int4 weights, which XLA dequantizes in the
graph. Beside the times stand the bytes of each one's matrices, and how far the results are from the
first one's.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.harness.results import ResultRow
from experiments.harness.timers import best_times
from llada_jax.backend.resources import available_cores
from llada_jax.config import ModelConfig
from llada_jax.model.forward import cache_for, forward_rows
from llada_jax.model.params import ModelParams, init_params
from llada_jax.model.quantize import QuantArray, dequantize
from llada_jax.model.score_rules import ScoreRules
from llada_jax.revision.matmul import TileMultiplier
from llada_jax.revision.tiled_forward import pack_params, tiled_denoiser
from llada_jax.revision.tiles import Tiles, unpack_q4_0
from llada_jax.rows import make_rows
from llada_jax.types import KVCache, Rows

BASELINE = "float32"


CACHED = 256
"""Positions in the cache."""


def time_revision(
    model: ModelConfig, repeats: int, seed: int, n_rows: Sequence[int] = range(1, 9)
) -> Iterator[ResultRow]:
    """Yields all rows of the suite."""
    one = one_layer_of(model)
    forms = _forms(one, seed)
    yield ResultRow("revision/threads", available_cores(), "threads")
    for name, params in forms.items():
        yield ResultRow(f"revision/{name}/weights", _bytes(params) / 1e6, "MB")
        ratio = _bytes(forms[BASELINE]) / _bytes(params)
        if name != BASELINE:
            yield ResultRow(f"revision/{name}/memory", ratio, "x smaller")
    with TileMultiplier(available_cores()) as multiply:
        for count in n_rows:
            yield from _compared(one, forms, count, multiply, repeats)


def one_layer_of(model: ModelConfig) -> ModelConfig:
    """Returns one layer of a shape, with a vocabulary of no account."""
    special = dict.fromkeys(("mask_id", "eos_id", "eot_id", "pad_id"))
    return model.replace(n_layers=1, vocab_size=512, **special)


def _forms(config: ModelConfig, seed: int) -> dict[str, ModelParams]:
    """Makes the parameters of one layer, of the same numbers in all forms."""
    tiles = pack_params(init_params(config, jax.random.key(seed)), config)

    def integers(leaf: Any) -> Any:
        return QuantArray(*map(jnp.asarray, unpack_q4_0(leaf))) if isinstance(leaf, Tiles) else leaf

    def floats(leaf: Any) -> Any:
        return dequantize(integers(leaf), jnp.float32) if isinstance(leaf, Tiles) else leaf

    wide = jax.tree.map(floats, tiles)
    return {
        BASELINE: wide,
        "q4_0_tiles": tiles,
        "int4_in_graph": jax.tree.map(integers, tiles),
    }


def _bytes(params: ModelParams) -> int:
    """Counts the bytes of the layer's matrices. XLA's int4 lies one in a byte."""
    matrices = jax.tree.leaves((params.layers[0].attention, params.layers[0].ffn))
    return sum(matrix.nbytes for matrix in matrices)


def _compared(
    config: ModelConfig,
    forms: dict[str, ModelParams],
    n_rows: int,
    multiply: TileMultiplier,
    repeats: int,
) -> Iterator[ResultRow]:
    rows, cache = _rows(config, forms[BASELINE], n_rows)
    tiled = tiled_denoiser(config, ScoreRules(), multiply).forward_rows
    by_xla = partial(jax.jit(forward_rows, static_argnames="config"), config=config)
    calls = {
        name: partial(tiled if name.endswith("tiles") else by_xla, params, rows=rows, cache=cache)
        for name, params in forms.items()
    }
    expected = np.asarray(calls[BASELINE]().hidden)
    times = best_times(calls, repeats)
    for name, call in calls.items():
        prefix = f"revision/{name}/{n_rows}"
        yield ResultRow(f"{prefix}/ms", times[name] * 1e3, "ms")
        if name != BASELINE:
            speedup = times[BASELINE] / times[name]
            yield ResultRow(f"{prefix}/speedup", speedup, "x faster")
            difference = np.abs(np.asarray(call().hidden) - expected).max()
            error = float(difference / np.abs(expected).max())
            yield ResultRow(f"{prefix}/error", error, "of the largest state")


def _rows(config: ModelConfig, params: ModelParams, n_rows: int) -> tuple[Rows, KVCache]:
    """Scatters rows over the cached positions, as tokens that the window left behind are."""
    empty = cache_for(params, config, 1, CACHED)
    keys = jax.random.split(jax.random.key(1), 2)
    full = (jax.random.normal(k, a.shape, a.dtype) for k, a in zip(keys, empty, strict=True))
    positions = (jnp.arange(n_rows, dtype=jnp.int32) * (CACHED // n_rows))[None]
    every = jnp.ones(positions.shape, bool)
    rows = make_rows(positions % config.vocab_size, positions, every, jnp.ones((1, CACHED), bool))
    return rows, KVCache(*full)
