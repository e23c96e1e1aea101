"""A forward that also says which experts every row took."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from llada_jax.config import ModelConfig
from llada_jax.model.forward import LayerHooks, forward_rows, plain_feed_forward
from llada_jax.model.moe import Chosen, route, router_scores
from llada_jax.model.params import Experts, Layer, ModelParams
from llada_jax.types import KVCache, Rows, RowsOut

LOOK_AHEAD = 3
"""Layers whose gates are asked early (HybriMoE, arXiv 2504.05897, section IV-C)."""
BEYOND = -1
"""In `foreseen`, for layers after the last one."""


class RoutingRecord(NamedTuple):
    """The routing of M routed layers, or of one; T rows of the whole batch, A layers ahead."""

    experts: Int[Array, "*M T k"]
    scores: Float[Array, "*M T E"]
    foreseen: Int[Array, "*M A T k"]
    """What the gates of the A layers that follow choose on this layer's input."""


def forward_rows_recorded(
    params: ModelParams, config: ModelConfig, rows: Rows, cache: KVCache
) -> tuple[RowsOut, RoutingRecord]:
    """Runs `forward_rows` and gives the routing, too. Rows that are not live are routed as well."""
    taken: list[RoutingRecord] = []

    def feed_forward_of(
        x: Float[Array, "B R D"], layer: Layer, config: ModelConfig, index: int
    ) -> Float[Array, "B R D"]:
        if isinstance(layer.ffn, Experts):
            taken.append(routed(params, x, config, index)[1])
        return plain_feed_forward(x, layer, config, index)

    hooks = LayerHooks(feed_forward_of=feed_forward_of)
    out = forward_rows(params, config, rows, cache, hooks)
    return out, jax.tree.map(lambda *layers: jnp.stack(layers), *taken)


recorded = jax.jit(forward_rows_recorded, static_argnums=1)


def routed(
    params: ModelParams, x: Float[Array, "B R D"], config: ModelConfig, index: int
) -> tuple[Chosen, RoutingRecord]:
    """Returns the routing of layer `index` for its input, and the record of it.

    The experts of the layers after it are foreseen by their own gates on the same input.
    """
    ffn, moe = params.layers[index].ffn, config.moe
    assert isinstance(ffn, Experts) and moe is not None
    flat = x.reshape(-1, x.shape[-1])
    routing = route(flat, ffn, moe)
    following = [layer.ffn for layer in params.layers[index + 1 : index + 1 + LOOK_AHEAD]]
    seen = [route(flat, each, moe).experts for each in following if isinstance(each, Experts)]
    nothing = jnp.full((len(flat), moe.experts_per_token), BEYOND, jnp.int32)
    foreseen = jnp.stack([*seen, *[nothing] * (LOOK_AHEAD - len(seen))])
    return routing, RoutingRecord(routing.experts, router_scores(flat, ffn, moe), foreseen)
