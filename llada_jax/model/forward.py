"""The body of the model: `forward_rows` for some rows of a canvas, and `forward` for all of them.

One function, `run_layer`, runs a layer, and every forward calls a function of its signature for one
layer after the other. Callers change a layer by passing another such function: `run_layer` with
another feed-forward half or another attention (`functools.partial`), or one that runs the two
halves separately.

By default that function is `shared_layer`, which is compiled as one function of the program that
all equal layers call. So tracing and lowering take the same time for any number of layers. XLA
inlines the calls: its own time grows with the layers. A loop (`jax.lax.scan` over stacked weights)
would avoid that, but on a CPU it copies the weights of a layer before each product, which makes a
step up to 1.5 times as slow (docs/cpu.md).
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import ModelConfig
from llada_jax.model.head import logits_of
from llada_jax.model.layers import (
    Attend,
    CachedLayer,
    Rotation,
    attend,
    feed_forward,
    mix_heads,
    rms_norm,
    rotation,
)
from llada_jax.model.moe import moe_feed_forward
from llada_jax.model.params import Experts, FeedForward, Layer, ModelParams
from llada_jax.model.quantize import linear
from llada_jax.rows import filled_order, make_rows
from llada_jax.types import KVCache, Rows, RowsOut

LayerOut = tuple[Float[Array, "B R D"], Float[Array, "B R K Dh"], Float[Array, "B R K Dh"]]
"""Hidden states, and the rows' keys and values."""
RunLayer = Callable[..., LayerOut]
"""A function with the arguments of `run_layer`, up to `cached`, and its result."""
FeedForwardHalf = Callable[
    [Float[Array, "B R D"], FeedForward | Experts, ModelConfig], Float[Array, "B R D"]
]
"""`ffn(x, weights, config)`: the second half of a layer, after its norm."""


def feed_forward_half(
    x: Float[Array, "B R D"], weights: FeedForward | Experts, config: ModelConfig
) -> Float[Array, "B R D"]:
    """Runs a dense feed-forward network, or routed experts."""
    if isinstance(weights, Experts):
        assert config.moe is not None
        return moe_feed_forward(x, weights, config.moe)
    return feed_forward(x, weights)


def run_layer(
    layer: Layer,
    config: ModelConfig,
    hidden: Float[Array, "B R D"],
    angles: Rotation,
    visible: Any,
    cached: Any,
    *,
    ffn: FeedForwardHalf = feed_forward_half,
    attend_with: Attend = attend,
) -> LayerOut:
    """Runs one layer.

    Args:
      angles: Angles of RoPE at the rows' positions.
      visible, cached: What each row sees, and the layer's keys and values, in the form that
        `attend_with` reads: `Visible` and a `CachedLayer`.
    """
    hidden, normed, key, value = attention_half(
        layer, config, hidden, angles, visible, cached, attend_with
    )
    return hidden + ffn(normed, layer.ffn, config), key, value


def attention_half(
    layer: Layer,
    config: ModelConfig,
    hidden: Float[Array, "B R D"],
    angles: Rotation,
    visible: Any,
    cached: Any,
    attend_with: Attend = attend,
) -> tuple[
    Float[Array, "B R D"], Float[Array, "B R D"], Float[Array, "B R K Dh"], Float[Array, "B R K Dh"]
]:
    """Runs the first half of a layer. The cache is only read: NPU compilers split the graph at an
    update in place.

    Returns hidden states, the same after the second norm, and the rows' keys and values.
    """
    weights = layer.attention
    normed = rms_norm(hidden, layer.attention_norm, config.norm_eps)
    projected = [linear(normed, matrix) for matrix in weights[:3]]  # query, key, value
    small = weights._replace(query=None, key=None, value=None, output=None)
    mixed, (key, value) = mix_heads(config, attend_with, projected, small, angles, visible, cached)
    hidden = hidden + linear(mixed, weights.output)
    return hidden, rms_norm(hidden, layer.ffn_norm, config.norm_eps), key, value


shared_layer = jax.jit(run_layer, static_argnames=("config", "ffn", "attend_with"))


def run_layers(
    layers: Sequence[Layer],
    config: ModelConfig,
    hidden: Float[Array, "B R D"],
    angles: Rotation,
    visible: Any,
    caches: Iterable[Any],
    run: RunLayer = shared_layer,
    first: int = 0,
) -> tuple[Float[Array, "B R D"], list[Float[Array, "B R K Dh"]], list[Float[Array, "B R K Dh"]]]:
    """Runs consecutive layers; `first` is the number of the first one in the model. Returns hidden
    states, and keys and values of each layer.

    Embeddings, angles and masks, which depend on token ids and positions alone, are inputs: so this
    part of a step, when it is lowered for an NPU, is matrix products and elementwise operations.
    """
    keys, values = [], []
    for index, (layer, cached) in enumerate(zip(layers, caches, strict=True), start=first):
        with jax.named_scope(f"layer_{index}"):
            hidden, key, value = run(layer, config, hidden, angles, visible, cached)
        keys.append(key)
        values.append(value)
    return hidden, keys, values


def forward_rows(
    params: ModelParams,
    config: ModelConfig,
    rows: Rows,
    cache: KVCache,
    run: RunLayer = shared_layer,
    taps: Sequence[int] = (),
) -> RowsOut:
    """Runs some rows of a canvas against a cache, which is only read.

    Args:
      params: Arrays of one float dtype, which the activations also have, or quantized matrices.
      run: Runs each layer; its `cached` is a `CachedLayer` with the layer's number as `index`.
      taps: Layers, from 0, whose outputs are also returned.
    """
    outputs = {}

    def run_tapped(layer, config, hidden, angles, visible, cached):
        out = run(layer, config, hidden, angles, visible, cached)
        outputs[cached.index] = out[0]
        return out

    hidden, keys, values = run_layers(
        params.layers,
        config,
        params.embedding[rows.tokens],
        rotation(config, rows.positions),
        (rows.sees_cache, rows.sees_rows),
        cached_layers(cache),
        run_tapped if taps else run,
    )
    hidden = rms_norm(hidden, params.final_norm, config.norm_eps)
    tapped = jnp.stack([outputs[layer] for layer in taps], axis=2) if taps else None
    return RowsOut(hidden, tuple(keys), tuple(values), tapped)


def cached_layers(cache: KVCache) -> Iterator[CachedLayer]:
    """Returns what each layer reads of a cache."""
    return map(CachedLayer, *cache, itertools.count())


def forward(
    params: ModelParams,
    config: ModelConfig,
    tokens: Int[Array, "B L"],
    live: Bool[Array, "B L"] | None = None,
    run: RunLayer = shared_layer,
) -> Float[Array, "B L V"]:
    """Returns the logits of every position, float32, as the model computes them (not shifted).

    Arguments as `hidden_states`.
    """
    return logits_of(params, hidden_states(params, config, tokens, live, run))


def hidden_states(
    params: ModelParams,
    config: ModelConfig,
    tokens: Int[Array, "B L"],
    live: Bool[Array, "B L"] | None = None,
    run: RunLayer = shared_layer,
) -> Float[Array, "B L D"]:
    """Returns the states of every position after the final norm, the head's input. Arguments as
    `forward_canvas`."""
    return forward_canvas(params, config, tokens, live, run).hidden


def forward_canvas(
    params: ModelParams,
    config: ModelConfig,
    tokens: Int[Array, "B L"],
    live: Bool[Array, "B L"] | None = None,
    run: RunLayer = shared_layer,
    taps: Sequence[int] = (),
) -> RowsOut:
    """Runs every position of canvases, without a cache.

    Args:
      live: Positions that exist (default: all); positions count the live ones.
      run, taps: As for `forward_rows`.
    """
    live = jnp.ones(tokens.shape, bool) if live is None else live
    positions = jnp.maximum(jnp.cumsum(live, axis=1, dtype=jnp.int32) - 1, 0)
    order = attention_order(config, tokens, positions)
    nothing = jnp.zeros((tokens.shape[0], 0), bool)
    cache_order = None if order is None else order[:, :0]
    rows = make_rows(tokens, positions, live, nothing, order, cache_order)
    cache = cache_for(params, config, len(tokens), 0)
    return forward_rows(params, config, rows, cache, run, taps)


def attention_order(
    config: ModelConfig, tokens: Int[Array, "B L"], positions: Int[Array, "B L"]
) -> Int[Array, "B L"] | None:
    """Returns the order of a canvas's positions, in which each one sees its own and lower ones, or
    None if all see each other.

    A model with blocks orders positions by block, and a causal one by position, as if all tokens
    were finished. In a causal model of `filled` tokens, [MASK] comes after all tokens.
    """
    if config.causal == "filled" and config.mask_id is not None:
        return filled_order(tokens == config.mask_id, positions)
    if config.causal is not None:
        return positions
    return None if config.block_length is None else positions // config.block_length


def cache_for(
    params: ModelParams,
    config: ModelConfig,
    batch: int,
    length: int,
    place: jax.sharding.Sharding | None = None,
) -> KVCache:
    """Returns an empty cache for canvases of `length`, in the activations' dtype."""
    shape = (batch, config.n_kv_heads, length, config.head_dim)

    def layers() -> tuple[Float[Array, "B K L Dh"], ...]:
        zeros = partial(jnp.zeros, shape, params.embedding.dtype, device=place)
        return tuple(zeros() for _ in range(config.n_layers))

    return KVCache(layers(), layers())
