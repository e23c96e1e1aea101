"""Building blocks of a transformer layer that every family shares.

What stands between two matrix products is compiled where nothing around it is (`_piece`), so that
one body serves programs that are compiled as a whole and hosts whose products are not JAX's.
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
from llada_jax.model.quantize import along_last, linear, per_row
from llada_jax.types import Rows

ROPE_TURNS = {"yarn": (32, 1), "llama3": (4, 1)}
"""Turns of RoPE's fast and slow frequencies, between which scaling blends."""
HIDDEN_SCORE = -3e4
"""Added to the score of what a row may not see: its share is exactly 0, and float16 holds it."""

CUDNN_DTYPES = ("bfloat16", "float16")
"""For which there is a fused kernel of attention on a GPU."""

Fresh = tuple[Float[Array, "B R K Dh"], Float[Array, "B R K Dh"]]
"""Keys and values of the rows themselves."""
Attend = Callable[
    [Float[Array, "B R H Dh"], Fresh, Float[Array, "B R T"], Any], Float[Array, "B R HDh"]
]
"""`attend_with(query, fresh, bias, cached)`: what the rows' heads make of what they see."""

_piece = partial(jax.jit, inline=True)


class CachedLayer(NamedTuple):
    """Cached keys and values of layer `index`; L may be 0. They are sliced where they are used: a
    host that runs compiled layers one by one makes no copies of its own."""

    keys: Float[Array, "N B L K Dh"]
    values: Float[Array, "N B L K Dh"]
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
    """Returns what scaled RoPE multiplies each frequency by: 1 where it turns more than so many
    times in the length that was trained, 1/factor where less than so many (`ROPE_TURNS`), and what
    is linear between them elsewhere: in the dimension for YaRN, in the turns for Llama 3."""
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
    """Returns what is added to the scores of cached positions and fresh rows (T = L + R)."""
    visible = jnp.concatenate([rows.sees_cache, rows.sees_rows], axis=-1)
    return jnp.where(visible, jnp.float32(0), HIDDEN_SCORE)


def attend(
    query: Float[Array, "B R H Dh"],
    keys: Sequence[Float[Array, "B t K Dh"]],
    values: Sequence[Float[Array, "B t K Dh"]],
    bias: Float[Array, "B R T"],
    alike: bool = False,
) -> Float[Array, "B R HDh"]:
    """Runs grouped-query attention with a float32 softmax; a row that sees nothing gives any value.
    `alike` is of `softmax`.

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
    shares = softmax(scores + bias[:, None, None], alike).astype(query.dtype)
    out, start = jnp.float32(0), 0
    for part in values:
        share = shares[..., start : start + part.shape[1]]
        start += part.shape[1]
        out = out + jnp.einsum("bkgrt,btkd->brkgd", share, part, preferred_element_type=jnp.float32)
    return out.astype(query.dtype).reshape(batch, n_rows, -1)


def softmax(scores: Float[Array, "*rows n"], alike: bool = False) -> Float[Array, "*rows n"]:
    """Returns each row's shares; with `alike` equal bits of equal rows, whatever is beside them.

    XLA's kernels for CPUs take exponentials and sums otherwise where there are more rows or heads.
    So those that are alike are fused with nothing, and summed in an order of their own.
    """
    below = scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    if not alike:
        unscaled = jnp.exp(below)
        return per_row(unscaled, unscaled.sum(axis=-1, keepdims=True))
    unscaled = jax.lax.optimization_barrier(jnp.exp(jax.lax.optimization_barrier(below)))
    return per_row(unscaled, _sum_of_halves(unscaled))


def _sum_of_halves(x: Float[Array, "*rows n"]) -> Float[Array, "*rows 1"]:
    """Returns sums of rows by adding their halves, and the halves of that."""
    size = 1 << (x.shape[-1] - 1).bit_length()
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, size - x.shape[-1])])
    while x.shape[-1] > 1:
        x = x[..., : x.shape[-1] // 2] + x[..., x.shape[-1] // 2 :]
    return x


def attend_to_cache(
    query: Float[Array, "B R H Dh"],
    fresh: Fresh,
    bias: Float[Array, "B R T"],
    cached: CachedLayer,
    attend: Callable[..., Float[Array, "B R HDh"]] = attend,
) -> Float[Array, "B R HDh"]:
    """Lets rows attend to the cached positions, if there are any, and to each other, by `attend` or
    what takes and gives the same."""
    if cached.keys.shape[2] == 0:
        return attend(query, *([part] for part in fresh), bias)
    old = (array[cached.index] for array in (cached.keys, cached.values))
    keys, values = ([part.astype(new.dtype), new] for part, new in zip(old, fresh, strict=True))
    return attend(query, keys, values, bias)


attend_alike_to_cache = partial(attend_to_cache, attend=partial(attend, alike=True))


def attention(
    x: Float[Array, "B R D"],
    weights: Attention,
    config: ModelConfig,
    angles: Rotation,
    bias: Float[Array, "B R T"],
    cached: Any,
    attend_with: Attend = attend_to_cache,
) -> tuple[Float[Array, "B R D"], Fresh]:
    """Lets rows attend to the cache and to each other; returns their keys and values, too.

    The cache is only read: NPU compilers split the graph at an update in place.
    """
    projected = [linear(x, matrix) for matrix in (weights.query, weights.key, weights.value)]
    biases = weights.query_bias, weights.key_bias, weights.value_bias
    norms = weights.query_norm, weights.key_norm
    mixed, fresh = _mix(config, attend_with, projected, biases, norms, angles, bias, cached)
    return linear(mixed, weights.output), fresh


@partial(_piece, static_argnums=(0, 1))
def _mix(
    config: ModelConfig,
    attend_with: Attend,
    projected: Sequence[Float[Array, "B R X"]],
    biases: Sequence[Float[Array, " X"] | None],
    norms: Sequence[Float[Array, " Dh"] | None],
    angles: Rotation,
    bias: Float[Array, "B R T"],
    cached: Any,
) -> tuple[Float[Array, "B R HDh"], Fresh]:
    """Returns the heads' outputs from their queries, keys and values as the matrices gave them."""

    def heads(index: int) -> Float[Array, "B R K Dh"]:
        out, added = projected[index], biases[index]
        out = out if added is None else out + along_last(added, out)
        return out.reshape(*out.shape[:2], -1, config.head_dim)

    def turned(index: int) -> Float[Array, "B R K Dh"]:
        out, norm = heads(index), norms[index]
        return rotate(out if norm is None else rms_norm(out, norm, config.norm_eps), angles)

    query, fresh = turned(0), (turned(1), heads(2))
    return attend_with(query, fresh, bias, cached), fresh


def feed_forward(x: Float[Array, "*rows D"], weights: FeedForward) -> Float[Array, "*rows D"]:
    """Applies SwiGLU."""
    gate = jax.nn.silu(linear(x, weights.gate))
    return linear(gate * linear(x, weights.up), weights.down)


def fused_attend(
    query: Float[Array, "B R H Dh"],
    keys: Sequence[Float[Array, "B t K Dh"]],
    values: Sequence[Float[Array, "B t K Dh"]],
    bias: Float[Array, "B R T"],
) -> Float[Array, "B R HDh"]:
    """Runs grouped-query attention as `attend` does, without scores in memory on a GPU; a row sees
    where the bias is 0.

    `jax.nn.dot_product_attention` takes cuDNN's kernel where there is one, for `CUDNN_DTYPES`.
    Elsewhere the same call is a plain graph of XLA, so that it can be tested on a CPU.
    """
    on_gpu = jax.default_backend() == "gpu" and str(query.dtype) in CUDNN_DTYPES
    joined = (jnp.concatenate(parts, axis=1) for parts in (keys, values))
    with jax.numpy_dtype_promotion("standard"):  # JAX's own code mixes dtypes
        out = jax.nn.dot_product_attention(
            query, *joined, mask=bias[:, None] == 0, implementation="cudnn" if on_gpu else None
        )
    return out.reshape(*out.shape[:2], -1)


fused_attend_to_cache = partial(attend_to_cache, attend=fused_attend)
