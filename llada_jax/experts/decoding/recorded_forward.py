"""A forward that also says which experts every row took."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from llada_jax.config import ModelConfig, MoEConfig
from llada_jax.model.forward import LayerHooks, forward_rows, plain_feed_forward
from llada_jax.model.moe import route, router_scores
from llada_jax.model.params import Experts, Layer, ModelParams
from llada_jax.types import KVCache, Rows, RowsOut

LOOK_AHEAD = 3
"""Layers whose gates are asked early (HybriMoE, arXiv 2504.05897, section IV-C)."""
BEYOND = -1
"""In `foreseen`, for layers after the last one."""


class RoutingRecord(NamedTuple):
    """The routing of one forward: M routed layers, T rows of the whole batch, A layers ahead."""

    experts: Int[Array, "M T k"]
    weights: Float[Array, "M T k"]
    scores: Float[Array, "M T E"]
    foreseen: Int[Array, "M A T k"]
    """What the gates of the A layers that follow choose on this layer's input."""


def forward_rows_recorded(
    params: ModelParams, config: ModelConfig, rows: Rows, cache: KVCache
) -> tuple[RowsOut, RoutingRecord]:
    """Runs `forward_rows` and gives the routing, too. Rows that are not live are routed as well."""
    assert config.moe is not None
    taken: list[tuple[Array, ...]] = []

    def feed_forward_of(
        x: Float[Array, "B R D"], layer: Layer, config: ModelConfig, index: int
    ) -> Float[Array, "B R D"]:
        if isinstance(layer.ffn, Experts):
            assert config.moe is not None
            flat = x.reshape(-1, x.shape[-1])
            routing = route(flat, layer.ffn, config.moe)
            scores = router_scores(flat, layer.ffn, config.moe)
            taken.append((*routing, scores, foreseen(params, flat, config.moe, index)))
        return plain_feed_forward(x, layer, config, index)

    hooks = LayerHooks(feed_forward_of=feed_forward_of)
    out = forward_rows(params, config, rows, cache, hooks)
    return out, RoutingRecord(*(jnp.stack(each) for each in zip(*taken, strict=True)))


def foreseen(
    params: ModelParams, x: Float[Array, "T D"], config: MoEConfig, index: int
) -> Int[Array, "A T k"]:
    """Returns the experts of the layers after `index`, by their own gates on its input."""
    following = [layer.ffn for layer in params.layers[index + 1 : index + 1 + LOOK_AHEAD]]
    chosen = [route(x, ffn, config).experts for ffn in following if isinstance(ffn, Experts)]
    nothing = jnp.full((x.shape[0], config.experts_per_token), BEYOND, jnp.int32)
    return jnp.stack([*chosen, *[nothing] * (LOOK_AHEAD - len(chosen))])


recorded = jax.jit(forward_rows_recorded, static_argnums=1)
