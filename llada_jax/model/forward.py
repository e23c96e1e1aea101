"""The body of the model: `forward_rows`, and `forward` over a whole canvas.

A layer's body exists once (`run_layers`). Who runs the matrix products or the experts elsewhere
gives hooks: tiles on the host's threads, experts that do not all lie on the accelerator, recorders.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import ModelConfig
from llada_jax.model.head import logits_of
from llada_jax.model.layers import (
    Attend,
    CachedLayer,
    Multiply,
    Rotation,
    attend_to_cache,
    attention,
    attention_bias,
    feed_forward,
    rms_norm,
    rotation,
)
from llada_jax.model.moe import moe_feed_forward
from llada_jax.model.params import Experts, Layer, ModelParams
from llada_jax.model.quantize import linear
from llada_jax.rows import filled_order, make_rows
from llada_jax.types import KVCache, Rows, RowsOut

FeedForwardOf = Callable[[Float[Array, "B R D"], Layer, ModelConfig, int], Float[Array, "B R D"]]
"""`feed_forward_of(x, layer, config, index)`: the second half of layer `index`, after its norm."""


def plain_feed_forward(
    x: Float[Array, "B R D"], layer: Layer, config: ModelConfig, index: int
) -> Float[Array, "B R D"]:
    """Runs a layer whose matrices, or all of its experts, lie where the rest of the model does."""
    if isinstance(layer.ffn, Experts):
        assert config.moe is not None
        return moe_feed_forward(x, layer.ffn, config.moe)
    return feed_forward(x, layer.ffn)


class LayerHooks(NamedTuple):
    """How the parts of a layer are run that may run elsewhere; by default as parts of the graph."""

    multiply: Multiply = linear  # products with the matrices of attention
    feed_forward_of: FeedForwardOf = plain_feed_forward
    attend_with: Attend = attend_to_cache


PLAIN = LayerHooks()


def forward_rows(
    params: ModelParams,
    config: ModelConfig,
    rows: Rows,
    cache: KVCache,
    hooks: LayerHooks = PLAIN,
    run: Callable[..., "LayerOut"] | None = None,
) -> RowsOut:
    """Runs some rows of a canvas, of which only live ones change anything, against a cache that is
    read only.

    Args:
      params: arrays of one float dtype, which is also the activations', or quantized matrices.
      run: `run_layer`, or what does the same; default: one function for all equal layers.
    """
    in_graph = hooks.multiply is linear and hooks.feed_forward_of is plain_feed_forward
    hidden, keys, values = run_layers(
        params.layers,
        config,
        params.embedding[rows.tokens],
        rotation(config, rows.positions),
        attention_bias(rows),
        map(CachedLayer, tuple(cache.keys), tuple(cache.values)),
        hooks=hooks,
        run=run or (_run_shared if in_graph else run_layer),
    )
    hidden = rms_norm(hidden, params.final_norm, config.norm_eps)
    return RowsOut(hidden, jnp.stack(keys), jnp.stack(values))


LayerOut = tuple[Float[Array, "B R D"], Float[Array, "B R K Dh"], Float[Array, "B R K Dh"]]
"""Hidden states, and the rows' keys and values."""


def run_layer(
    layer: Layer,
    config: ModelConfig,
    hidden: Float[Array, "B R D"],
    angles: Rotation,
    bias: Float[Array, "B R T"],
    cached: CachedLayer,
    index: int = 0,
    hooks: LayerHooks = PLAIN,
) -> LayerOut:
    """Runs one layer, whose number in the whole model the hooks are told."""
    hidden, normed, key, value = attended(layer, config, hidden, angles, bias, cached, hooks)
    return hidden + hooks.feed_forward_of(normed, layer, config, index), key, value


def attended(
    layer: Layer,
    config: ModelConfig,
    hidden: Float[Array, "B R D"],
    angles: Rotation,
    bias: Float[Array, "B R T"],
    cached: CachedLayer,
    hooks: LayerHooks = PLAIN,
) -> tuple[
    Float[Array, "B R D"], Float[Array, "B R D"], Float[Array, "B R K Dh"], Float[Array, "B R K Dh"]
]:
    """Runs the first half of a layer: returns hidden states, the same after the second norm, and
    the rows' keys and values."""
    normed = rms_norm(hidden, layer.attention_norm, config.norm_eps)
    mixed, (key, value) = attention(
        normed, layer.attention, config, angles, bias, cached, hooks.multiply, hooks.attend_with
    )
    hidden = hidden + mixed
    return hidden, rms_norm(hidden, layer.ffn_norm, config.norm_eps), key, value


_one_function = jax.jit(run_layer, static_argnums=(1, 6, 7))


def _run_shared(*args: Any) -> LayerOut:
    """Calls a function that all equal layers share, so that no program grows with their number."""
    *inputs, _index, hooks = args
    return _one_function(*inputs, 0, hooks)


def run_layers(
    layers: Sequence[Layer],
    config: ModelConfig,
    hidden: Float[Array, "B R D"],
    angles: Rotation,
    bias: Float[Array, "B R T"],
    caches: Iterable[Any],
    first: int = 0,
    hooks: LayerHooks = PLAIN,
    run: Callable[..., LayerOut] = run_layer,
) -> tuple[Float[Array, "B R D"], list[Float[Array, "B R K Dh"]], list[Float[Array, "B R K Dh"]]]:
    """Runs consecutive layers: the part of a step that is lowered for an NPU.

    What depends on token ids and positions alone (embeddings, angles, masks) comes from outside, so
    that the graph is matrix products and elementwise operations.

    Args:
      caches: keys and values for each layer, taken when its turn comes; a `CachedLayer`, or what
        else `hooks.attend_with` takes.
      first: the first layer's number in the whole model.
    """
    keys, values = [], []
    for index, (layer, cached) in enumerate(zip(layers, caches, strict=True), start=first):
        with jax.named_scope(f"layer_{index}"):
            hidden, key, value = run(layer, config, hidden, angles, bias, cached, index, hooks)
        keys.append(key)
        values.append(value)
    return hidden, keys, values


def forward(
    params: ModelParams,
    config: ModelConfig,
    tokens: Int[Array, "B L"],
    live: Bool[Array, "B L"] | None = None,
    hooks: LayerHooks = PLAIN,
    run: Callable[..., LayerOut] | None = None,
) -> Float[Array, "B L V"]:
    """Returns the logits of every position, float32, as the model gives them (not shifted).

    Arguments as `hidden_states`.
    """
    return logits_of(params, hidden_states(params, config, tokens, live, hooks, run))


def hidden_states(
    params: ModelParams,
    config: ModelConfig,
    tokens: Int[Array, "B L"],
    live: Bool[Array, "B L"] | None = None,
    hooks: LayerHooks = PLAIN,
    run: Callable[..., LayerOut] | None = None,
) -> Float[Array, "B L D"]:
    """Returns states of every position after the final norm: all that the head reads.

    Args:
      live: positions that exist (default: all); positions count the live ones.
    """
    live = jnp.ones(tokens.shape, bool) if live is None else live
    positions = jnp.maximum(jnp.cumsum(live, axis=1, dtype=jnp.int32) - 1, 0)
    order = own_order(config, tokens, positions)
    nothing = jnp.zeros((tokens.shape[0], 0), bool)
    cache_order = None if order is None else order[:, :0]
    rows = make_rows(tokens, positions, live, nothing, order, cache_order)
    nothing_cached = cache_for(params, config, len(tokens), 0)
    return forward_rows(params, config, rows, nothing_cached, hooks, run).hidden


def own_order(
    config: ModelConfig, tokens: Int[Array, "B L"], positions: Int[Array, "B L"]
) -> Int[Array, "B L"] | None:
    """Returns the order between the positions of a canvas, of which each sees its own and lower
    ones; None where all see each other. Of a model that has blocks it is a position's block; of one
    that is causal the position, as if everything were finished, and that of [MASK] after all tokens
    where these are first."""
    if config.causal == "filled" and config.mask_id is not None:
        return filled_order(tokens == config.mask_id, positions)
    if config.causal is not None:
        return positions
    return None if config.block_length is None else positions // config.block_length


def cache_for(params: ModelParams, config: ModelConfig, batch: int, length: int) -> KVCache:
    """Returns an empty cache for canvases of `length`, in the activations' dtype."""
    shape = (config.n_layers, batch, length, config.n_kv_heads, config.head_dim)
    return KVCache(*(jnp.zeros(shape, params.embedding.dtype) for _ in range(2)))
