"""Building blocks of a transformer layer that every family shares."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from llada_jax.config import ModelConfig
from llada_jax.model.params import Attention, FeedForward
from llada_jax.model.quantize import linear
from llada_jax.types import Rows

HIDDEN_SCORE = -3e4
"""Added to the score of what a row may not see: its share is exactly 0, and float16 holds it."""


class Rotation(NamedTuple):
    """Cosines and sines of RoPE's angles, one per pair of rotated dimensions."""

    cos: Float[Array, "B R 1 half"]
    sin: Float[Array, "B R 1 half"]


def rms_norm(
    x: Float[Array, "*rows D"], weight: Float[Array, " D"], eps: float
) -> Float[Array, "*rows D"]:
    """Root-mean-square norm in float32, cast back before the weight multiplies."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale).astype(x.dtype) * weight


def rotation(config: ModelConfig, positions: Int[Array, "B R"]) -> Rotation:
    """RoPE's angles at absolute positions, in float32."""
    half = config.rotary_dims // 2
    frequency = config.rope_theta ** -(jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions[:, :, None, None].astype(jnp.float32) * frequency
    return Rotation(jnp.cos(angle), jnp.sin(angle))


def rotate(x: Float[Array, "B R K Dh"], angles: Rotation) -> Float[Array, "B R K Dh"]:
    """RoPE on the leading dimensions of each head (half rotation, as GPT-NeoX), in float32."""
    half = angles.cos.shape[-1]
    wide = x.astype(jnp.float32)
    left, right, rest = wide[..., :half], wide[..., half : 2 * half], wide[..., 2 * half :]
    turned = [left * angles.cos - right * angles.sin, right * angles.cos + left * angles.sin, rest]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def project_qkv(
    x: Float[Array, "B R D"], weights: Attention, config: ModelConfig, angles: Rotation
) -> tuple[Float[Array, "B R H Dh"], Float[Array, "B R K Dh"], Float[Array, "B R K Dh"]]:
    """Queries and keys after RoPE, and values."""
    projected = [linear(x, matrix) for matrix in (weights.query, weights.key, weights.value)]
    return finish_qkv(projected, weights, config, angles)


def finish_qkv(
    projected: Sequence[Float[Array, "B R X"]],
    weights: Attention,
    config: ModelConfig,
    angles: Rotation,
) -> tuple[Float[Array, "B R H Dh"], Float[Array, "B R K Dh"], Float[Array, "B R K Dh"]]:
    """What follows the three matrices of `project_qkv`: biases, norms and RoPE, by head."""

    def heads(out: Array, bias: Array | None, norm: Array | None) -> Array:
        if bias is not None:
            out = out + bias
        out = out.reshape(*out.shape[:2], -1, config.head_dim)
        return out if norm is None else rms_norm(out, norm, config.norm_eps)

    query, key, value = projected
    turned_query = rotate(heads(query, weights.query_bias, weights.query_norm), angles)
    turned_key = rotate(heads(key, weights.key_bias, weights.key_norm), angles)
    return turned_query, turned_key, heads(value, weights.value_bias, None)


def attention_bias(rows: Rows) -> Float[Array, "B R T"]:
    """What is added to the scores of the cached positions and of the fresh rows (T = L + R)."""
    visible = jnp.concatenate([rows.sees_cache, rows.sees_rows], axis=-1)
    return jnp.where(visible, 0.0, HIDDEN_SCORE)


def attend(
    query: Float[Array, "B R H Dh"],
    keys: Sequence[Float[Array, "B t K Dh"]],
    values: Sequence[Float[Array, "B t K Dh"]],
    bias: Float[Array, "B R T"],
) -> Float[Array, "B R HDh"]:
    """Grouped-query attention with a float32 softmax; a row that sees nothing gives any value.

    Keys and values come in parts of t positions, T together. Joining the scores instead of the
    parts copies R numbers a position and head, not Dh; scaling the query touches fewer numbers than
    scaling the scores.
    """
    batch, n_rows, _, head_dim = query.shape
    scaled = (query.astype(jnp.float32) * head_dim**-0.5).astype(query.dtype)
    grouped = scaled.reshape(batch, n_rows, keys[0].shape[2], -1, head_dim)

    def score(part: Float[Array, "B t K Dh"]) -> Float[Array, "B K g R t"]:
        return jnp.einsum("brkgd,btkd->bkgrt", grouped, part, preferred_element_type=jnp.float32)

    scores = jnp.concatenate([score(part) for part in keys], axis=-1)
    shares = jax.nn.softmax(scores + bias[:, None, None], axis=-1).astype(query.dtype)
    out, start = jnp.float32(0), 0
    for part in values:
        share = shares[..., start : start + part.shape[1]]
        start += part.shape[1]
        out = out + jnp.einsum("bkgrt,btkd->brkgd", share, part, preferred_element_type=jnp.float32)
    return out.astype(query.dtype).reshape(batch, n_rows, -1)


def attention(
    x: Float[Array, "B R D"],
    weights: Attention,
    config: ModelConfig,
    angles: Rotation,
    bias: Float[Array, "B R T"],
    cached_keys: Float[Array, "B L K Dh"],
    cached_values: Float[Array, "B L K Dh"],
) -> tuple[Float[Array, "B R D"], Float[Array, "B R K Dh"], Float[Array, "B R K Dh"]]:
    """Rows attend to the cache and to each other; also their fresh keys and values.

    The cache is only read: NPU compilers split the graph at an update in place.
    """
    query, key, value = project_qkv(x, weights, config, angles)
    cached = cached_keys.shape[1] > 0
    keys = [cached_keys, key] if cached else [key]
    values = [cached_values, value] if cached else [value]
    return linear(attend(query, keys, values, bias), weights.output), key, value


def feed_forward(x: Float[Array, "*rows D"], weights: FeedForward) -> Float[Array, "*rows D"]:
    """SwiGLU."""
    return linear(jax.nn.silu(linear(x, weights.gate)) * linear(x, weights.up), weights.down)
