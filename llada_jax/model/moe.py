"""Routed experts: the choice of experts for each row, and their weighted sum.

Rows are sorted by expert, so that each expert is one matrix product over consecutive rows, and then
summed by row again. On a mesh each device runs its experts and receives the others' outputs.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from llada_jax.config import MoEConfig, require
from llada_jax.model.grouped_product import grouped_product
from llada_jax.model.layers import feed_forward, softmax
from llada_jax.model.params import Experts
from llada_jax.model.quantize import Weight, WeightShard


class Routing(NamedTuple):
    """The experts of each row and their weights (float32)."""

    experts: Int[Array, "T k"]
    weights: Float[Array, "T k"]


def router_logits(x: Float[Array, "T D"], experts: Experts) -> Float[Array, "T E"]:
    """Returns the logit of every expert, float32."""
    return x.astype(jnp.float32) @ experts.router.astype(jnp.float32).T


def router_scores(
    x: Float[Array, "T D"], experts: Experts, config: MoEConfig
) -> Float[Array, "T E"]:
    """Returns the router's score of every expert: a softmax or sigmoids, float32."""
    logits = router_logits(x, experts)
    if config.router == "sigmoid":
        return jax.nn.sigmoid(logits)
    return softmax(logits, alike=isinstance(experts.gate, WeightShard))


def route(x: Float[Array, "T D"], experts: Experts, config: MoEConfig) -> Routing:
    """Picks the top k in float32, within the best groups of experts if there are groups.

    LLaDA-MoE takes a softmax over all experts and keeps the weights as they are. LLaDA2 takes
    sigmoids; a learned bias takes part in the choice alone, a group scores with its two best
    experts, and the chosen weights are normalised and scaled (LLaDA2.0 technical report).
    """
    scores = router_scores(x, experts, config)
    preference = scores
    if experts.selection_bias is not None:
        preference = scores + experts.selection_bias.astype(jnp.float32)[None, :]
    if config.groups_per_token < config.n_groups:
        preference = _keep_best_groups(preference, config)
    _, chosen = jax.lax.top_k(preference, config.experts_per_token)
    weights = jnp.take_along_axis(scores, chosen, axis=-1)
    if config.normalize_weights:
        weights = weights * (1 / (weights.sum(axis=-1, keepdims=True) + 1e-20))  # as in `softmax`
    return Routing(chosen, weights * config.weight_scale)


def _keep_best_groups(preference: Float[Array, "T E"], config: MoEConfig) -> Float[Array, "T E"]:
    grouped = preference.reshape(-1, config.n_groups, config.n_experts // config.n_groups)
    group_score = jax.lax.top_k(grouped, min(2, grouped.shape[-1]))[0].sum(axis=-1)
    _, kept = jax.lax.top_k(group_score, config.groups_per_token)
    keep = jax.nn.one_hot(kept, config.n_groups).sum(axis=1) > 0
    return jnp.where(keep[:, :, None], grouped, -jnp.inf).reshape(preference.shape)


def moe_feed_forward(
    x: Float[Array, "B R D"], experts: Experts, config: MoEConfig
) -> Float[Array, "B R D"]:
    """Adds up each row's experts by their weights, and the shared expert."""
    flat = x.reshape(-1, x.shape[-1])
    if isinstance(experts.gate, WeightShard):
        flat = jax.lax.optimization_barrier(flat)  # as `linear` does
    total = _weighted_experts(flat, route(flat, experts, config), experts)
    if experts.shared is not None:
        total = total + feed_forward(flat, experts.shared)
    return total.reshape(x.shape)


def _weighted_experts(
    x: Float[Array, "T D"], routing: Routing, experts: Experts
) -> Float[Array, "T D"]:
    """Adds up each row's experts by their weights; an expert of weight 0 adds exactly nothing.

    Rows are sorted by expert so that each expert is one contiguous matrix product. Raises
    ValueError for experts that were left out when the model was loaded.
    """
    require(
        experts.gate is not None,
        "the experts are not in memory; allowed: a model that has them, or generate_within_budget",
    )
    inputs, order, group_sizes = sorted_by_expert(x, routing, experts.router.shape[0])
    sharded = isinstance(experts.gate, WeightShard)
    of_experts: Callable[..., Array] = _by_local_experts if sharded else _by_experts
    outputs = of_experts(inputs, group_sizes, experts.gate, experts.up, experts.down)
    return summed_by_row(outputs, order, routing)


def _by_experts(
    inputs: Float[Array, "P D"], group_sizes: Int[Array, " E"], *matrices: Weight
) -> Float[Array, "P D"]:
    """Runs sorted rows through the experts that they are sorted by."""
    gate, up = (grouped_product(inputs, matrix, group_sizes) for matrix in matrices[:2])
    return grouped_product(jax.nn.silu(gate) * up, matrices[2], group_sizes)


def _by_local_experts(
    inputs: Float[Array, "P D"], group_sizes: Int[Array, " E"], *matrices: WeightShard
) -> Float[Array, "P D"]:
    """Runs the rows of a device's experts, and receives the outputs of the other devices' experts.

    An expert is whole on its device, and a row's outputs are added up after all have arrived, so no
    sum depends on the mesh.
    """
    axes, local = matrices[0].axes, [matrix.weight for matrix in matrices]
    count = jax.tree.leaves(local[0])[0].shape[0]
    first = jax.lax.axis_index(axes) * count
    sizes = jax.lax.dynamic_slice_in_dim(group_sizes, first, count)
    before = jnp.where(jnp.arange(len(group_sizes)) < first, group_sizes, 0).sum()
    outputs = _by_experts(jnp.roll(inputs, -before, axis=0), sizes, *local)
    is_local = jnp.arange(len(inputs))[:, None] < sizes.sum()
    return jax.lax.psum(jnp.roll(jnp.where(is_local, outputs, 0), before, axis=0), axes)


def sorted_by_expert(
    x: Float[Array, "T D"], routing: Routing, n_experts: int
) -> tuple[Float[Array, "P D"], Int[Array, " P"], Int[Array, " E"]]:
    """Returns each row once for each of its experts, the rows of expert 0 first; the index of
    each among all choices [T k], counted row by row; and the number of rows of each expert."""
    flat = routing.experts.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    group_sizes = jnp.bincount(flat, length=n_experts).astype(jnp.int32)
    return x[order // routing.experts.shape[1]], order, group_sizes


def summed_by_row(
    outputs: Float[Array, "P D"], order: Int[Array, " P"], routing: Routing
) -> Float[Array, "T D"]:
    """Adds up the experts' outputs for sorted rows, by their weights."""
    n_rows, taken = routing.experts.shape
    outputs = outputs * routing.weights.reshape(-1)[order, None].astype(outputs.dtype)
    return jnp.zeros((n_rows, outputs.shape[1]), outputs.dtype).at[order // taken].add(outputs)
