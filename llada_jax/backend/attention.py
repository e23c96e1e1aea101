"""Attention as backends run it: a head at a time, so that caches are read as they lie.

Where positions come before heads, as in `model.layers.attend`, LiteRT turns every cache around
twice a layer, and that takes longer than the attention itself.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from llada_jax.model.layers import Fresh, softmax


class HeadsFirst(NamedTuple):
    """A canvas's cache of a layer."""

    keys: Float[Array, "K C Dh"]
    values: Float[Array, "K C Dh"]


def attend_by_canvas(
    query: Float[Array, "1 R H Dh"],
    fresh: Fresh,
    bias: Float[Array, "1 R T"],
    cached: Sequence[HeadsFirst],
) -> Float[Array, "1 R HDh"]:
    """Lets the rows of each canvas attend to its cache and to each other, as they would alone."""
    split = partial(jnp.split, indices_or_sections=len(cached), axis=1)
    parts = zip(split(query), *map(split, fresh), split(bias), cached, strict=True)
    outs = [
        _attend(rows[0], (keys[0], values[0]), sees[0], old)
        for rows, keys, values, sees, old in parts
    ]
    return jnp.concatenate(outs, axis=0)[None]


def _attend(
    query: Float[Array, "R H Dh"],
    fresh: tuple[Float[Array, "R K Dh"], Float[Array, "R K Dh"]],
    bias: Float[Array, "R T"],
    cached: HeadsFirst,
) -> Float[Array, "R HDh"]:
    """Runs grouped-query attention with a float32 softmax."""
    n_rows, _, head_dim = query.shape
    kv_heads = fresh[0].shape[1]
    grouped = (query * head_dim**-0.5).reshape(n_rows, kv_heads, -1, head_dim)
    grouped = grouped.transpose(1, 2, 0, 3).reshape(kv_heads, -1, head_dim)
    parts = [HeadsFirst(*(part.swapaxes(0, 1) for part in fresh))]
    parts = [cached, *parts] if cached.keys.shape[1] else parts
    scores = jnp.concatenate([_by_head(grouped, part.keys, 2) for part in parts], axis=-1)
    shares = softmax(scores.reshape(kv_heads, -1, *bias.shape) + bias).reshape(scores.shape)
    out, start = jnp.float32(0), 0
    for part in parts:
        stop = start + part.values.shape[1]
        out = out + _by_head(shares[..., start:stop], part.values, 1)
        start = stop
    out = out.reshape(kv_heads, -1, n_rows, head_dim).transpose(2, 0, 1, 3)
    return out.reshape(n_rows, -1)


def _by_head(
    left: Float[Array, "K n x"], right: Float[Array, "K p q"], summed: int
) -> Float[Array, "K n m"]:
    """Multiplies matrices of each head over the last axis and the axis `summed` of the other."""
    return jax.lax.dot_general(left, right, (((2,), (summed,)), ((0,), (0,))))
