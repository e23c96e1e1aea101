"""Attention of few rows over a cache, in a kernel for NVIDIA GPUs that reads the cache in place.

A program computes a block of rows of one head over a part of the keys with a running softmax
(arXiv 2112.05682). The keys are split if there are too few heads and rows for all multiprocessors
(split softmax, arXiv 2311.01282).
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Int8

ROW_BLOCK, KEY_BLOCK = 32, 64
"""Rows of a program, and keys that it reads at a time."""
PROGRAMS = 256
"""That an H100 (132 multiprocessors) runs at a time."""


def attend_to_cache(
    rows: Float[Array, "B K n Dh"],
    keys: Float[Array, "B K L Dh"],
    values: Float[Array, "B K L Dh"],
    sees: Int8[Array, "B n L"],
    hidden_score: float,
    interpret: bool = False,
) -> tuple[Float[Array, "S B K n"], Float[Array, "S B K n"], Float[Array, "S B K n Dh"]]:
    """Returns of each of S parts of the keys the rows' highest score, the sum of exponentials of
    scores less the highest, and the sum of the values weighted with these exponentials, in float32.

    Args:
      rows: Scaled queries. Dh is a power of two.
      sees: 0 for keys that a row does not see; `hidden_score` is added to their scores.
      interpret: Runs the kernel as JAX operations, on any platform.
    """
    n_rows, (batch, n_heads, n_keys, head_dim) = rows.shape[2], keys.shape
    blocks, steps = -(-n_rows // ROW_BLOCK), -(-n_keys // KEY_BLOCK)
    padding = blocks * ROW_BLOCK - n_rows
    rows = jnp.pad(rows, [(0, 0), (0, 0), (0, padding), (0, 0)])
    sees = jnp.pad(sees, [(0, 0), (0, padding), (0, 0)])
    parts = min(max(PROGRAMS // (batch * n_heads * blocks), 1), steps)
    each = -(-steps // parts)
    whole = pl.BlockSpec((None, None, n_keys, head_dim), lambda b, k, r, s: (b, k, 0, 0))
    number = pl.BlockSpec((None, None, None, ROW_BLOCK), lambda b, k, r, s: (s, b, k, r))
    shape = parts, batch, n_heads, blocks * ROW_BLOCK
    wide = partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    top, total, out = pl.pallas_call(
        partial(_attend, n_keys=n_keys, n_steps=each, hidden_score=hidden_score),
        grid=(batch, n_heads, blocks, parts),
        in_specs=[
            pl.BlockSpec((None, None, ROW_BLOCK, head_dim), lambda b, k, r, s: (b, k, r, 0)),
            whole,
            whole,
            pl.BlockSpec((None, ROW_BLOCK, n_keys), lambda b, k, r, s: (b, r, 0)),
        ],
        out_specs=[
            number,
            number,
            pl.BlockSpec(
                (None, None, None, ROW_BLOCK, head_dim), lambda b, k, r, s: (s, b, k, r, 0)
            ),
        ],
        out_shape=[wide(shape), wide(shape), wide((*shape, head_dim))],
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=3),
        interpret=interpret,
        name="attend_to_cache",
    )(rows, keys, values, sees)
    return top[..., :n_rows], total[..., :n_rows], out[..., :n_rows, :]


def _attend(
    rows: Any,
    keys: Any,
    values: Any,
    sees: Any,
    top: Any,
    total: Any,
    out: Any,
    *,
    n_keys: int,
    n_steps: int,
    hidden_score: float,
) -> None:
    queries, first = rows[...], pl.program_id(3) * n_steps * KEY_BLOCK

    def absorb(step: Any, running: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        highest, total, out = running
        start = first + step * KEY_BLOCK
        at = pl.ds(start, KEY_BLOCK)
        exists = start + jnp.arange(KEY_BLOCK) < n_keys
        block = triton.load(keys.at[at, :], mask=exists[:, None], other=0)
        seen = triton.load(sees.at[:, at], mask=exists[None, :], other=0)
        scores = triton.dot(queries, block.T)
        scores += jnp.where(seen != 0, jnp.float32(0), jnp.float32(hidden_score))
        above = jnp.maximum(highest, scores.max(axis=1))
        shares, kept = jnp.exp(scores - above[:, None]), jnp.exp(highest - above)
        block = triton.load(values.at[at, :], mask=exists[:, None], other=0)
        added = triton.dot(shares.astype(block.dtype), block)
        return above, kept * total + shares.sum(axis=1), kept[:, None] * out + added

    zeros = jnp.zeros(ROW_BLOCK, jnp.float32)
    running = zeros + hidden_score, zeros, jnp.zeros(out.shape, jnp.float32)
    top[...], total[...], out[...] = jax.lax.fori_loop(0, n_steps, absorb, running)
