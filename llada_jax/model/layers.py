"""Building blocks of a transformer layer that every family shares: norm, RoPE, attention, SwiGLU.

The operations between two matrix products are compiled by themselves if nothing around them is
(`_piece`). So the same code serves programs that are compiled as a whole, and hosts with matrix
products outside JAX (the revision kernel).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from llada_jax.config import ModelConfig
from llada_jax.model.params import Attention, FeedForward
from llada_jax.model.quantize import along_last, linear
from llada_jax.types import Rows

ROPE_TURNS = {"yarn": (32, 1), "llama3": (4, 1)}
"""Turns of RoPE's fast and slow frequencies, between which scaling blends (arXiv 2309.00071)."""
HIDDEN_SCORE = -3e4  # added to scores that a row may not see: their shares are 0, also in float16

CUDNN_DTYPES = ("bfloat16", "float16")  # with a fused kernel of attention on a GPU

KeysValues = tuple[Float[Array, "B R K Dh"], Float[Array, "B R K Dh"]]
"""Keys and values of the rows themselves."""
Attend = Callable[
    [Float[Array, "B R H Dh"], KeysValues, Float[Array, "B R T"], Any], Float[Array, "B R HDh"]
]
"""`attend_with(query, fresh, bias, cached)`: the outputs of the rows' heads."""

_piece = partial(jax.jit, inline=True)


class CachedLayer(NamedTuple):
    """Cached keys and values of layer `index`; L may be 0."""

    keys: Float[Array, "B K L Dh"]
    values: Float[Array, "B K L Dh"]
    index: int | Int[Array, ""]


class Rotation(NamedTuple):
    """Cosines and sines of RoPE's angles, one per pair of rotated dimensions."""

    cos: Float[Array, "B R 1 half"]
    sin: Float[Array, "B R 1 half"]


@partial(_piece, static_argnums=2)
def rms_norm(
    x: Float[Array, "*rows D"], weight: Float[Array, " D"], eps: float
) -> Float[Array, "*rows D"]:
    """Applies the root-mean-square norm in float32, cast back before the weight multiplies."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale).astype(x.dtype) * along_last(weight, x)


@partial(_piece, static_argnums=0)
def rotation(config: ModelConfig, positions: Int[Array, "B R"]) -> Rotation:
    """Returns RoPE's angles at absolute positions, in float32."""
    half = config.rotary_dims // 2
    frequency = config.rope_theta ** -(jnp.arange(half, dtype=jnp.float32) / half)
    frequency = (frequency * rope_stretch(config))[None, None, None, :]
    angle = positions[:, :, None, None].astype(jnp.float32) * frequency
    return Rotation(jnp.cos(angle), jnp.sin(angle))


def rope_stretch(config: ModelConfig) -> Float[np.ndarray, " half"] | float:
    """Returns the factor of each frequency of scaled RoPE: 1 for frequencies that turn more than
    `ROPE_TURNS[scaling][0]` times in the trained length, 1/factor for those that turn less than
    `ROPE_TURNS[scaling][1]` times, and linear between them: in the dimension for YaRN, in the turns
    for Llama 3."""
    half, length = config.rotary_dims // 2, config.rope_length
    if config.rope_scaling is None or length is None:
        return 1.0
    index = np.arange(half, dtype=np.float32)
    fast, slow = ROPE_TURNS[config.rope_scaling]
    if config.rope_scaling == "llama3":
        turns = length / (2 * math.pi) * config.rope_theta ** -(index / half)
        slowed = 1 - np.clip((turns - slow) / (fast - slow), 0, 1)
    else:

        def dimension(turns: float) -> float:
            return half * math.log(length / (turns * 2 * math.pi)) / math.log(config.rope_theta)

        low = max(math.floor(dimension(fast)), 0)
        high = min(math.ceil(dimension(slow)), 2 * half - 1)
        slowed = np.clip((index - low) / max(high - low, 1e-3), 0, 1)
    return 1 + slowed * (1 / config.rope_factor - 1)


def rotate(x: Float[Array, "B R K Dh"], angles: Rotation) -> Float[Array, "B R K Dh"]:
    """Applies RoPE to each head's leading dimensions (half rotation, as GPT-NeoX), in float32."""
    half = angles.cos.shape[-1]
    wide = x.astype(jnp.float32)
    left, right, rest = wide[..., :half], wide[..., half : 2 * half], wide[..., 2 * half :]
    turned = [left * angles.cos - right * angles.sin, right * angles.cos + left * angles.sin, rest]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


@_piece
def attention_bias(rows: Rows) -> Float[Array, "B R T"]:
    """Returns the mask that is added to the scores of cached positions and rows (T = L + R)."""
    visible = jnp.concatenate([rows.sees_cache, rows.sees_rows], axis=-1)
    return jnp.where(visible, jnp.float32(0), HIDDEN_SCORE)


def attend(
    query: Float[Array, "B R H Dh"],
    fresh: KeysValues,
    bias: Float[Array, "B R T"],
    cached: CachedLayer,
    alike: bool = False,
) -> Float[Array, "B R HDh"]:
    """Runs grouped-query attention of rows over cached positions and each other, with a float32
    softmax; a row that sees nothing gets any value.

    The scores of cached positions and of rows are joined, which copies R numbers for each position
    and head; joining keys and values would copy Dh. For the same reason the query is scaled, not
    the scores. The rows of all query heads of a key head are one operand, so that XLA multiplies
    matrices, not vectors.

    Args:
      alike: See `softmax`.
    """
    keys, values = _visible_parts(fresh, cached)
    batch, n_rows, n_heads, head_dim = query.shape
    n_kv_heads = fresh[0].shape[2]
    scaled = (query.astype(jnp.float32) * head_dim**-0.5).astype(query.dtype)
    grouped = scaled.reshape(batch, n_rows, n_kv_heads, -1, head_dim).transpose(0, 2, 3, 1, 4)
    grouped = grouped.reshape(batch, n_kv_heads, -1, head_dim)
    wide = partial(jnp.einsum, preferred_element_type=jnp.float32)
    scores = jnp.concatenate([wide("bkqd,bktd->bkqt", grouped, part) for part in keys], axis=-1)
    by_head = scores.reshape(batch, n_kv_heads, -1, n_rows, scores.shape[-1])
    shares = softmax(by_head + bias[:, None, None], alike).astype(query.dtype)
    shares, out, start = shares.reshape(scores.shape), jnp.float32(0), 0
    for part in values:
        share = shares[..., start : start + part.shape[2]]
        start += part.shape[2]
        out = out + wide("bkqt,bktd->bkqd", share, part)
    out = out.astype(query.dtype).reshape(batch, n_heads, n_rows, head_dim)
    return out.swapaxes(1, 2).reshape(batch, n_rows, -1)


def softmax(scores: Float[Array, "*rows n"], alike: bool = False) -> Float[Array, "*rows n"]:
    """Returns each row's shares; with `alike` equal bits for equal rows, whatever the other rows.

    XLA's CPU kernels compute exponentials and sums in another way if there are more rows or heads.
    With `alike` they are therefore fused with nothing, and sums have a fixed order.
    """
    below = scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    if alike:
        unscaled = jax.lax.optimization_barrier(jnp.exp(jax.lax.optimization_barrier(below)))
        total = _sum_of_halves(unscaled)
    else:
        unscaled = jnp.exp(below)
        total = unscaled.sum(axis=-1, keepdims=True)
    # XLA turns a division into either form, depending on the program: other bits on other meshes.
    return unscaled * (1 / total)


def _sum_of_halves(x: Float[Array, "*rows n"]) -> Float[Array, "*rows 1"]:
    """Returns the sums of rows, added in a fixed order: half to half, until one number is left."""
    size = 1 << (x.shape[-1] - 1).bit_length()
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, size - x.shape[-1])])
    while x.shape[-1] > 1:
        x = x[..., : x.shape[-1] // 2] + x[..., x.shape[-1] // 2 :]
    return x


def _visible_parts(
    fresh: KeysValues, cached: CachedLayer
) -> tuple[Sequence[Float[Array, "B K t Dh"]], Sequence[Float[Array, "B K t Dh"]]]:
    """Returns keys and values in parts: the cached positions, if there are any, and the rows."""
    keys, values = (part.swapaxes(1, 2) for part in fresh)
    if cached.keys.shape[2] == 0:
        return [keys], [values]
    return [cached.keys.astype(keys.dtype), keys], [cached.values.astype(values.dtype), values]


@partial(_piece, static_argnums=(0, 1))
def mix_heads(
    config: ModelConfig,
    attend_with: Attend,
    projected: Sequence[Float[Array, "B R X"]],
    weights: Attention,
    angles: Rotation,
    bias: Float[Array, "B R T"],
    cached: Any,
) -> tuple[Float[Array, "B R HDh"], KeysValues]:
    """Returns the heads' outputs, and the rows' keys and values.

    Args:
      projected: Products of the rows with the matrices of queries, keys and values.
      weights: Biases and norms; None for its matrices, which need not be arrays.
    """
    biases = weights.query_bias, weights.key_bias, weights.value_bias
    norms = weights.query_norm, weights.key_norm, None
    heads = []
    for out, added, norm in zip(projected, biases, norms, strict=True):
        if added is not None:
            out = out + along_last(added, out)
        out = out.reshape(*out.shape[:2], -1, config.head_dim)
        heads.append(out if norm is None else rms_norm(out, norm, config.norm_eps))
    query, key, value = rotate(heads[0], angles), rotate(heads[1], angles), heads[2]
    return attend_with(query, (key, value), bias, cached), (key, value)


def feed_forward(x: Float[Array, "*rows D"], weights: FeedForward) -> Float[Array, "*rows D"]:
    """Applies SwiGLU."""
    gate = jax.nn.silu(linear(x, weights.gate))
    return linear(gate * linear(x, weights.up), weights.down)


def fused_attend(
    query: Float[Array, "B R H Dh"],
    fresh: KeysValues,
    bias: Float[Array, "B R T"],
    cached: CachedLayer,
) -> Float[Array, "B R HDh"]:
    """Runs grouped-query attention as `attend` does, without scores in memory on a GPU. A row sees
    the positions with a bias of 0.

    `jax.nn.dot_product_attention` uses cuDNN's kernel on a GPU for `CUDNN_DTYPES`. Otherwise the
    same call is a plain graph of XLA, so that it can be tested on a CPU.
    """
    on_gpu = jax.default_backend() == "gpu" and str(query.dtype) in CUDNN_DTYPES
    parts = _visible_parts(fresh, cached)
    joined = (jnp.concatenate(part, axis=2).swapaxes(1, 2) for part in parts)
    with jax.numpy_dtype_promotion("standard"):  # JAX's own code mixes dtypes
        out = jax.nn.dot_product_attention(
            query, *joined, mask=bias[:, None] == 0, implementation="cudnn" if on_gpu else None
        )
    return out.reshape(*out.shape[:2], -1)
