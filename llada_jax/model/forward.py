"""The body of the model: `forward_rows`, and `forward` over a whole canvas."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import ModelConfig
from llada_jax.model.head import logits_of
from llada_jax.model.layers import (
    Rotation,
    attention,
    attention_bias,
    feed_forward,
    rms_norm,
    rotation,
)
from llada_jax.model.moe import moe_feed_forward
from llada_jax.model.params import Experts, Layer, ModelParams
from llada_jax.rows import empty_cache, make_rows
from llada_jax.types import KVCache, Rows, RowsOut

FeedForwardOf = Callable[[Float[Array, "B R D"], Layer, ModelConfig, int], Float[Array, "B R D"]]
"""`feed_forward_of(x, layer, config, index)`: the second half of layer `index`, after its norm."""


def plain_feed_forward(
    x: Float[Array, "B R D"], layer: Layer, config: ModelConfig, index: int
) -> Float[Array, "B R D"]:
    """The layer's matrices, or all of its experts, lie where the rest of the model does."""
    if isinstance(layer.ffn, Experts):
        assert config.moe is not None
        return moe_feed_forward(x, layer.ffn, config.moe)
    return feed_forward(x, layer.ffn)


def forward_rows(
    params: ModelParams,
    config: ModelConfig,
    rows: Rows,
    cache: KVCache,
    feed_forward_of: FeedForwardOf = plain_feed_forward,
) -> RowsOut:
    """Run some rows of a canvas against a cache.

    Args:
      params: arrays of one float dtype, which is also the activations', or quantized matrices.
      rows: tokens, absolute positions and visibility; rows that are not live change nothing.
      cache: keys and values by canvas position; read only.
      feed_forward_of: how the feed-forward half of a layer is run.

    Returns:
      Hidden states after the final norm [B, R, D], and the rows' keys and values [N, B, R, K, Dh].
    """
    hidden, keys, values = run_layers(
        params.layers,
        config,
        params.embedding[rows.tokens],
        rotation(config, rows.positions),
        attention_bias(rows),
        tuple(cache.keys),
        tuple(cache.values),
        feed_forward_of=feed_forward_of,
    )
    hidden = rms_norm(hidden, params.final_norm, config.norm_eps)
    return RowsOut(hidden, jnp.stack(keys), jnp.stack(values))


def run_layers(
    layers: Sequence[Layer],
    config: ModelConfig,
    hidden: Float[Array, "B R D"],
    angles: Rotation,
    bias: Float[Array, "B R T"],
    cached_keys: Sequence[Float[Array, "B L K Dh"]],
    cached_values: Sequence[Float[Array, "B L K Dh"]],
    first: int = 0,
    feed_forward_of: FeedForwardOf = plain_feed_forward,
) -> tuple[Float[Array, "B R D"], list[Float[Array, "B R K Dh"]], list[Float[Array, "B R K Dh"]]]:
    """Consecutive layers: the part of a step that is lowered for an NPU.

    What depends on token ids and positions alone (embeddings, angles, masks) comes from outside, so
    that the graph is matrix products and elementwise operations. Keys and values have one entry
    per layer. `first` is the first layer's number in the whole model.
    """
    keys, values = [], []
    for index, layer in enumerate(layers):
        with jax.named_scope(f"layer_{first + index}"):
            hidden, normed, key, value = attention_half(
                layer, config, hidden, angles, bias, cached_keys[index], cached_values[index]
            )
            hidden = hidden + feed_forward_of(normed, layer, config, first + index)
        keys.append(key)
        values.append(value)
    return hidden, keys, values


def attention_half(
    layer: Layer,
    config: ModelConfig,
    hidden: Float[Array, "B R D"],
    angles: Rotation,
    bias: Float[Array, "B R T"],
    cached_keys: Float[Array, "B L K Dh"],
    cached_values: Float[Array, "B L K Dh"],
) -> tuple[
    Float[Array, "B R D"],
    Float[Array, "B R D"],
    Float[Array, "B R K Dh"],
    Float[Array, "B R K Dh"],
]:
    """The first half of a layer: hidden states, the second half's input, keys and values."""
    mixed, key, value = attention(
        rms_norm(hidden, layer.attention_norm, config.norm_eps),
        layer.attention,
        config,
        angles,
        bias,
        cached_keys,
        cached_values,
    )
    hidden = hidden + mixed
    return hidden, rms_norm(hidden, layer.ffn_norm, config.norm_eps), key, value


def forward(
    params: ModelParams,
    config: ModelConfig,
    tokens: Int[Array, "B L"],
    live: Bool[Array, "B L"] | None = None,
    order: Int[Array, "B L"] | None = None,
    feed_forward_of: FeedForwardOf = plain_feed_forward,
) -> Float[Array, "B L V"]:
    """Logits of every position, float32, as the model gives them (not shifted).

    Arguments as `hidden_states`.
    """
    return logits_of(params, hidden_states(params, config, tokens, live, order, feed_forward_of))


def hidden_states(
    params: ModelParams,
    config: ModelConfig,
    tokens: Int[Array, "B L"],
    live: Bool[Array, "B L"] | None = None,
    order: Int[Array, "B L"] | None = None,
    feed_forward_of: FeedForwardOf = plain_feed_forward,
) -> Float[Array, "B L D"]:
    """States of every position after the final norm: all that the head reads.

    `live` marks positions that exist (default: all); positions count the live ones. `order` makes
    the mask causal between positions of different order (default: `block_order` of the config).
    `feed_forward_of` is how the feed-forward half of a layer is run.
    """
    live = jnp.ones(tokens.shape, bool) if live is None else live
    positions = jnp.maximum(jnp.cumsum(live, axis=1, dtype=jnp.int32) - 1, 0)
    if order is None and config.block_length is not None:
        order = positions // config.block_length
    nothing = jnp.zeros((tokens.shape[0], 0), bool)
    cache_order = None if order is None else order[:, :0]
    rows = make_rows(tokens, positions, live, nothing, order, cache_order)
    nothing_cached = cache_for(params, config, len(tokens), 0)
    return forward_rows(params, config, rows, nothing_cached, feed_forward_of).hidden


def cache_for(params: ModelParams, config: ModelConfig, batch: int, length: int) -> KVCache:
    """An empty cache for canvases of `length`, in the activations' dtype."""
    return empty_cache(
        config.n_layers, batch, length, config.n_kv_heads, config.head_dim, params.embedding.dtype
    )
