"""Building blocks of a transformer layer that every family shares: norm, RoPE, attention, SwiGLU.

The operations between two matrix products are compiled by themselves if nothing around them is
(`_piece`). So the same code serves programs that are compiled as a whole, and hosts with matrix
products outside JAX (the revision kernel).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import ModelConfig
from llada_jax.model.params import Attention, FeedForward
from llada_jax.model.quantize import along_last, linear

ROPE_TURNS = {"yarn": (32, 1), "llama3": (4, 1)}
"""Turns of RoPE's fast and slow frequencies, between which scaling blends (arXiv 2309.00071)."""
HIDDEN_SCORE = -3e4  # added to scores that a row may not see: their shares are 0, also in float16

GPU_DTYPES = ("bfloat16", "float16")  # with fused kernels of attention on a GPU

ROW_BLOCK, KEY_BLOCK = 256, 512  # rows and keys whose scores are in memory at a time
# Of a head, that are computed at once; independent of heads, for meshes. Blocks pay later without a
# cache, because then they have nothing to skip.
MOST_SCORES, MOST_WITHOUT_CACHE = 1 << 18, 1 << 20
# On a GPU: rows from which cuDNN is the fastest, and cached positions (of all canvases) from which
# our own kernel is, for heads of these sizes; measured on an H200 (docs/gpu.md).
FEW_ROWS, MANY_CACHED, KERNEL_DIMS = 256, 2048, (16, 32, 64, 128)

KeysValues = tuple[Float[Array, "*B R K Dh"], Float[Array, "*B R K Dh"]]
"""Keys and values of the rows themselves."""
Visible = tuple[Bool[Array, "B R L"], Bool[Array, "B R R"]]
"""Which cached positions, and which rows, a row sees."""
Attend = Callable[[Float[Array, "B R H Dh"], KeysValues, Any, Any], Float[Array, "B R HDh"]]
"""`attend_with(query, fresh, visible, cached)`: the outputs of the rows' heads."""
_Running = tuple[Float[Array, "B K n 1"], Float[Array, "B K n 1"], Float[Array, "B K n Dh"]]
"""Highest scores of rows, and sums of exponentials and of values weighted with them."""

_piece = partial(jax.jit, inline=True)
_cut = jax.lax.dynamic_slice_in_dim
_wide = partial(jnp.einsum, preferred_element_type=jnp.float32)


class CachedLayer(NamedTuple):
    """Cached keys and values of layer `index`; L may be 0."""

    keys: Float[Array, "*B K L Dh"]
    values: Float[Array, "*B K L Dh"]
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


def attend(
    query: Float[Array, "B R H Dh"],
    fresh: KeysValues,
    visible: Visible,
    cached: CachedLayer,
    alike: bool = False,
) -> Float[Array, "B R HDh"]:
    """Runs grouped-query attention of rows over cached positions and each other, with a float32
    softmax; a row that sees nothing gets any value.

    Few scores are computed at once, and more than `MOST_SCORES` of a head block by block. On a GPU
    many rows are left to cuDNN's kernel, which wants another order of keys than the cache's; few
    rows over many cached positions to our own, which reads the cache in place.

    Args:
      alike: See `softmax`.
    """
    if not alike and _on_gpu(query):
        batch, n_rows, _, head_dim = query.shape
        if n_rows > FEW_ROWS:
            return attend_in_cudnn(query, fresh, visible, cached)
        if batch * cached.keys.shape[2] >= MANY_CACHED and head_dim in KERNEL_DIMS:
            return attend_in_kernel(query, fresh, visible, cached)
        return all_at_once(query, fresh, visible, cached)
    most = MOST_SCORES if cached.keys.shape[2] else MOST_WITHOUT_CACHE
    if sum(part.shape[1] * part.shape[2] for part in visible) <= most:
        return all_at_once(query, fresh, visible, cached, alike)
    return attend_in_blocks(query, fresh, visible, cached, alike)


def all_at_once(
    query: Float[Array, "B R H Dh"],
    fresh: KeysValues,
    visible: Visible,
    cached: CachedLayer,
    alike: bool = False,
) -> Float[Array, "B R HDh"]:
    """Runs attention with all scores in memory."""
    return attend_at_once(query, fresh, _bias(jnp.concatenate(visible, -1)), cached, alike)


def attend_at_once(
    query: Float[Array, "*B R H Dh"],
    fresh: KeysValues,
    bias: Float[Array, "*B R T"],
    cached: CachedLayer,
    alike: bool = False,
) -> Float[Array, "*B R HDh"]:
    """Runs attention with all scores in memory; `bias` (T = L + R) is added to them. All arrays
    have a batch axis, or none does.

    The scores of cached positions and of rows are joined, which copies R numbers for each position
    and head; joining keys and values would copy Dh.
    """
    grouped, parts = _grouped(query, fresh), _parts(fresh, cached)
    scores = [_wide("...kqd,...ktd->...kqt", grouped, keys) for keys, _ in parts]
    scores = jnp.concatenate(scores, -1)
    by_head = scores.reshape(*scores.shape[:-2], -1, *bias.shape[-2:])
    shares = softmax(by_head + bias[..., None, None, :, :], alike).astype(query.dtype)
    shares, out, start = shares.reshape(scores.shape), jnp.float32(0), 0
    for _, values in parts:
        share = shares[..., start : start + values.shape[-2]]
        start += values.shape[-2]
        out = out + _wide("...kqt,...ktd->...kqd", share, values)
    return _by_row(out, query)


def attend_in_blocks(
    query: Float[Array, "B R H Dh"],
    fresh: KeysValues,
    visible: Visible,
    cached: CachedLayer,
    alike: bool = False,
) -> Float[Array, "B R HDh"]:
    """Runs attention block by block with a running softmax (arXiv 2112.05682): only the scores of a
    block of rows and a block of keys are in memory, and keys that none of these rows sees are
    skipped.

    The last block begins early enough to be whole. So some rows are computed twice; keys that were
    in the block before are hidden.
    """
    batch, n_rows = query.shape[:2]
    size, parts = min(ROW_BLOCK, n_rows), _parts(fresh, cached)
    grouped = _grouped(query, fresh)
    by_head = grouped.reshape(*grouped.shape[:2], -1, n_rows, grouped.shape[-1])

    @jax.checkpoint
    def attend_rows(start: Int[Array, ""]) -> Float[Array, "B K g r Dh"]:
        rows = _cut(by_head, start, size, 3)
        flat = rows.reshape(batch, rows.shape[1], -1, rows.shape[-1])
        zeros = jnp.zeros((*flat.shape[:3], 1), jnp.float32)
        running = zeros + HIDDEN_SCORE, zeros, jnp.zeros(flat.shape, jnp.float32)
        for (keys, values), sees in zip(parts, visible[-len(parts) :], strict=True):
            running = _absorb_keys(running, flat, keys, values, _cut(sees, start, size, 1), alike)
        _, total, out = running
        out *= 1 / jnp.where(total > 0, total, 1)  # not a division: see `softmax`
        return out.astype(query.dtype).reshape(rows.shape)

    def write(out: Float[Array, "B K g R Dh"], block: Int[Array, ""]) -> tuple[Any, None]:
        start = jnp.minimum(block * size, n_rows - size)
        return jax.lax.dynamic_update_slice_in_dim(out, attend_rows(start), start, axis=3), None

    out, _ = jax.lax.scan(write, jnp.zeros_like(by_head), jnp.arange(-(-n_rows // size)))
    return _by_row(out, query)


def _absorb_keys(
    running: _Running,
    rows: Float[Array, "B K n Dh"],
    keys: Float[Array, "B K t Dh"],
    values: Float[Array, "B K t Dh"],
    sees: Bool[Array, "B r t"],
    alike: bool,
) -> _Running:
    """Adds keys, block by block, to the highest score of each row (of each head that shares them)
    and the sums of exponentials and of weighted values."""
    size = min(KEY_BLOCK, keys.shape[2])

    def absorb(running: _Running, block: Int[Array, ""]) -> tuple[_Running, None]:
        start = jnp.minimum(block * size, keys.shape[2] - size)
        new = start + jnp.arange(size) >= block * size
        visible = _cut(sees, start, size, 2) & new[None, None]

        def add(running: _Running) -> _Running:
            highest, total, out = running
            scores = _visible_scores(rows, _cut(keys, start, size, 2), visible)
            above = jnp.maximum(highest, jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
            unscaled, added = _exponentials(scores - above, alike)
            share, part = unscaled.astype(values.dtype), _cut(values, start, size, 2)
            kept = jnp.exp(highest - above)
            return above, kept * total + added, kept * out + _wide("bkqt,bktd->bkqd", share, part)

        return jax.lax.cond(visible.any(), add, lambda running: running, running), None

    return jax.lax.scan(absorb, running, jnp.arange(-(-keys.shape[2] // size)))[0]


def softmax(scores: Float[Array, "*rows n"], alike: bool = False) -> Float[Array, "*rows n"]:
    """Returns each row's shares; with `alike` equal bits for equal rows, whatever the other rows.

    XLA's CPU kernels compute exponentials and sums in another way if there are more rows or heads.
    With `alike` they are therefore fused with nothing, and sums have a fixed order.
    """
    below = scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    unscaled, total = _exponentials(below, alike)
    # XLA turns a division into either form, depending on the program: other bits on other meshes.
    return unscaled * (1 / total)


def _exponentials(
    below: Float[Array, "*rows n"], alike: bool
) -> tuple[Float[Array, "*rows n"], Float[Array, "*rows 1"]]:
    """Returns exponentials and the sum of each row's."""
    if not alike:
        unscaled = jnp.exp(below)
        return unscaled, unscaled.sum(axis=-1, keepdims=True)
    unscaled = jax.lax.optimization_barrier(jnp.exp(jax.lax.optimization_barrier(below)))
    return unscaled, _sum_of_halves(unscaled)


def _sum_of_halves(x: Float[Array, "*rows n"]) -> Float[Array, "*rows 1"]:
    """Returns the sums of rows, added in a fixed order: half to half, until one number is left."""
    size = 1 << (x.shape[-1] - 1).bit_length()
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, size - x.shape[-1])])
    while x.shape[-1] > 1:
        x = x[..., : x.shape[-1] // 2] + x[..., x.shape[-1] // 2 :]
    return x


def _visible_scores(
    rows: Float[Array, "B K n Dh"], keys: Float[Array, "B K t Dh"], visible: Bool[Array, "B r t"]
) -> Float[Array, "B K n t"]:
    """Returns the scores of rows of grouped heads, in float32, with hidden keys far below."""
    scores = _wide("bkqd,bktd->bkqt", rows, keys)
    by_head = scores.reshape(*scores.shape[:2], -1, *visible.shape[1:])
    return (by_head + _bias(visible)[:, None, None]).reshape(scores.shape)


def _bias(visible: Bool[Array, "*rows T"]) -> Float[Array, "*rows T"]:
    return jnp.where(visible, jnp.float32(0), jnp.float32(HIDDEN_SCORE))


def _grouped(query: Float[Array, "*B R H Dh"], fresh: KeysValues) -> Float[Array, "*B K gR Dh"]:
    """Returns the scaled rows of all query heads of a key head as one operand, so that XLA
    multiplies matrices, not vectors. To scale the scores would take more multiplications."""
    *rows, _, head_dim = query.shape
    n_kv_heads = fresh[0].shape[-2]
    scaled = (query.astype(jnp.float32) * head_dim**-0.5).astype(query.dtype)
    grouped = jnp.moveaxis(scaled.reshape(*rows, n_kv_heads, -1, head_dim), -4, -2)
    return grouped.reshape(*rows[:-1], n_kv_heads, -1, head_dim)


def _by_row(out: Float[Array, "..."], query: Float[Array, "*B R H Dh"]) -> Float[Array, "*B R X"]:
    """Returns the heads' outputs, joined for each row, in the dtype of the query."""
    *batch, n_rows, n_heads, head_dim = query.shape
    out = out.astype(query.dtype).reshape(*batch, n_heads, n_rows, head_dim)
    return out.swapaxes(-3, -2).reshape(*batch, n_rows, -1)


def _parts(
    fresh: KeysValues, cached: CachedLayer
) -> list[tuple[Float[Array, "*B K t Dh"], Float[Array, "*B K t Dh"]]]:
    """Returns keys and values in parts: the cached positions, if there are any, and the rows."""
    keys, values = (part.swapaxes(-3, -2) for part in fresh)
    if cached.keys.shape[-2] == 0:
        return [(keys, values)]
    old = cached.keys.astype(keys.dtype), cached.values.astype(values.dtype)
    return [old, (keys, values)]


@partial(_piece, static_argnums=(0, 1))
def mix_heads(
    config: ModelConfig,
    attend_with: Attend,
    projected: Sequence[Float[Array, "B R X"]],
    weights: Attention,
    angles: Rotation,
    visible: Any,
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
    return attend_with(query, (key, value), visible, cached), (key, value)


def feed_forward(x: Float[Array, "*rows D"], weights: FeedForward) -> Float[Array, "*rows D"]:
    """Applies SwiGLU."""
    gate = jax.nn.silu(_stored_gradient(linear(x, weights.gate)))
    return linear(gate * linear(x, weights.up), weights.down)


@jax.custom_jvp
def _stored_gradient(x: Array) -> Array:
    """Returns `x`. Its gradient is stored before other operations read it: XLA would compute it
    column by column in the transpose for the matrix's gradient, which takes a fifth of a training
    step on CPUs."""
    return x


@_stored_gradient.defjvp
def _stored_tangent(values: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return values[0], jax.lax.optimization_barrier(tangents[0])


def attend_in_cudnn(
    query: Float[Array, "B R H Dh"],
    fresh: KeysValues,
    visible: Visible,
    cached: CachedLayer,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "B R HDh"]:
    """Runs attention as `attend` does, in cuDNN's kernel of a GPU. `xla` is the same call as a
    plain graph, which a CPU can run."""
    parts = zip(*_parts(fresh, cached), strict=True)
    joined = (jnp.concatenate(part, axis=2).swapaxes(1, 2) for part in parts)
    mask = jnp.concatenate(visible, axis=-1)[:, None]
    with jax.numpy_dtype_promotion("standard"):  # JAX's own code mixes dtypes
        out = jax.nn.dot_product_attention(query, *joined, mask=mask, implementation=implementation)
    return out.reshape(*out.shape[:2], -1)


def attend_in_kernel(
    query: Float[Array, "B R H Dh"],
    fresh: KeysValues,
    visible: Visible,
    cached: CachedLayer,
    interpret: bool = False,
) -> Float[Array, "B R HDh"]:
    """Runs attention as `attend` does: over cached positions in a kernel of a GPU (`interpret` runs
    it anywhere), and over the rows with all scores in memory."""
    # Pallas is not imported before it is needed: a CPU never does.
    from llada_jax.model.gpu_attention import attend_to_cache

    grouped, (old, (keys, values)) = _grouped(query, fresh), _parts(fresh, cached)
    shared = query.shape[2] // keys.shape[1]
    sees = jnp.tile(visible[0].astype(jnp.int8), (1, shared, 1))
    parts = attend_to_cache(grouped, *old, sees, HIDDEN_SCORE, interpret)
    scores = _visible_scores(grouped, keys, visible[1])
    top = scores.max(axis=-1)
    shares = jnp.exp(scores - top[..., None])
    out = _wide("bkqt,bktd->bkqd", shares.astype(values.dtype), values)
    own = top, shares.sum(axis=-1), out
    tops, totals, outs = (jnp.concatenate([a, b[None]]) for a, b in zip(parts, own, strict=True))
    weights = jnp.exp(tops - tops.max(axis=0, keepdims=True))
    total = (weights * totals).sum(axis=0)
    return _by_row((weights[..., None] * outs).sum(axis=0) / total[..., None], query)


def _on_gpu(query: Float[Array, "B R H Dh"]) -> bool:
    """Whether the first device is a GPU whose kernels can compute these heads: one with a compute
    capability of 8.0 or more (Ampere)."""
    fits = str(query.dtype) in GPU_DTYPES and query.shape[-1] % 8 == 0 and query.shape[-1] <= 128
    major = getattr(jax.devices()[0], "compute_capability", "0").partition(".")[0]
    return fits and major.isdigit() and int(major) >= 8
