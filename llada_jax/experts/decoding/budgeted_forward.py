"""A forward pass whose experts are not all in memory: it runs available ones while others are read.

A planner decides which ones stay, layer by layer, after the routing is known. The result does not
depend on its decisions.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Int

from llada_jax.config import ModelConfig, require
from llada_jax.experts.decoding.expert_slots import ExpertSlots
from llada_jax.experts.decoding.recording import RoutingRecord, route_layer
from llada_jax.experts.policy_run import LayerDecision
from llada_jax.experts.schedule import Schedule
from llada_jax.model.forward import LayerOut, RunLayer, attention_half, forward_rows
from llada_jax.model.grouped_product import product_by_tile, tile_rows
from llada_jax.model.layers import feed_forward
from llada_jax.model.moe import Routing, sorted_by_expert, summed_by_row
from llada_jax.model.params import Experts, FeedForward, Layer, ModelParams
from llada_jax.model.quantize import QuantArray, Weight, dequantize
from llada_jax.types import KVCache, Rows, RowsOut

Planner = Callable[[int, RoutingRecord], LayerDecision]
"""Decides a layer, given its index among routed layers and its routing in NumPy. The schedule must
contain every expert that a live row uses exactly once."""

_attention_half = jax.jit(attention_half, static_argnums=1)
_dense = jax.jit(feed_forward)
_route_layer = jax.jit(route_layer, static_argnums=(2, 3))


def forward_rows_budgeted(
    params: ModelParams,
    config: ModelConfig,
    rows: Rows,
    cache: KVCache,
    slots: ExpertSlots,
    plan: Planner,
) -> RowsOut:
    """Runs `forward_rows` layer by layer from Python, and loads and evicts experts as planned.

    Raises ValueError if a plan omits an expert that a live row uses, or contains one twice; and the
    errors of reading an expert.
    """
    assert config.moe is not None
    first, live = config.moe.first_layer, np.asarray(rows.live).reshape(-1)

    def mixed(x: Float[Array, "B R D"], index: int) -> Float[Array, "B R D"]:
        number = index - first
        routing, record = _route_layer(params, x, config, index)
        record = jax.tree.map(np.asarray, record)
        decision = plan(number, record)
        _require_each_once(decision.schedule, record.experts[live])
        flat = x.reshape(-1, x.shape[-1])
        return _run_experts(slots, number, flat, routing, decision).reshape(x.shape)

    return forward_rows(params, config, rows, cache, run=around_experts(mixed))


def around_experts(
    mixed: Callable[[Float[Array, "B R D"], int], Float[Array, "B R D"]],
) -> RunLayer:
    """Returns a function that runs a layer, and calls `mixed(x, index)` for its routed experts. The
    rest is compiled in parts that round like the plain forward pass."""

    def run(layer: Layer, config: ModelConfig, *inputs: Any) -> LayerOut:
        *_, cached = inputs
        ffn, half = layer.ffn, layer._replace(ffn=None)
        hidden, normed, key, value = _attention_half(half, config, *inputs)
        if not isinstance(ffn, Experts):
            return hidden + _dense(normed, ffn), key, value
        total = mixed(normed, cached.index)
        if ffn.shared is not None:
            total = _with_shared(total, normed, ffn.shared)
        return hidden + total, key, value

    return run


@jax.jit
def _with_shared(
    total: Float[Array, "B R D"], x: Float[Array, "B R D"], shared: FeedForward
) -> Float[Array, "B R D"]:
    flat = x.reshape(-1, x.shape[-1])
    return (total.reshape(flat.shape) + feed_forward(flat, shared)).reshape(x.shape)


def _require_each_once(schedule: Schedule, experts: Int[np.ndarray, "r k"]) -> None:
    planned, active = sorted([*schedule.cpu, *schedule.accelerator]), np.unique(experts).tolist()
    require(
        planned == sorted({*planned, *active}),
        f"the plan runs experts {planned}; allowed: each of {active} once",
    )


def _run_experts(
    slots: ExpertSlots,
    layer: int,
    x: Float[Array, "T D"],
    routing: Routing,
    decision: LayerDecision,
) -> Float[Array, "T D"]:
    """Returns the experts' part of a layer's output, and leaves the planned experts resident."""
    active = [*decision.schedule.accelerator, *decision.schedule.cpu]
    stays = set(np.flatnonzero(decision.resident_after).tolist())
    for expert in slots.resident(layer) - stays - set(active):
        slots.evict(layer, expert)
    order = slots.request(layer, active)
    for swap in decision.swaps:
        if swap.layer != layer:
            slots.prefetch(*swap)
    inputs, row_order, sizes = _sorted(x, routing, decision.resident_after.size)
    sizes, outputs = np.asarray(sizes), jnp.zeros_like(inputs)
    starts = (np.cumsum(sizes) - sizes).astype(np.int32)
    tile = tile_rows(len(row_order), len(sizes))
    for expert in order:
        matrices, span = slots.matrices(layer, expert), (starts[expert], sizes[expert])
        outputs = run_expert(outputs, inputs, *span, matrices, len(x), tile)
        if expert in stays:
            slots.keep(layer, expert)
        else:
            outputs.block_until_ready()  # its memory will be overwritten after the eviction
            slots.evict(layer, expert)
    outputs.block_until_ready()
    for swap in decision.swaps:  # in this layer, after its experts have run
        if swap.layer == layer:
            slots.prefetch(*swap)
    return _summed(outputs, row_order, routing)


@partial(jax.jit, static_argnums=2)
def _sorted(
    x: Float[Array, "T D"], routing: Routing, n_experts: int
) -> tuple[Float[Array, "P+T D"], Int[Array, " P"], Int[Array, " E"]]:
    """Sorts rows by expert, and adds padding for the largest number of rows of one expert."""
    inputs, order, sizes = sorted_by_expert(x, routing, n_experts)
    return jnp.pad(inputs, [(0, len(x)), (0, 0)]), order, sizes


@jax.jit
def _summed(
    outputs: Float[Array, "P+T D"], order: Int[Array, " P"], routing: Routing
) -> Float[Array, "T D"]:
    return summed_by_row(outputs[: len(order)], order, routing)


@partial(jax.jit, static_argnums=(5, 6), donate_argnums=0)
def run_expert(
    outputs: Float[Array, "P D"],
    inputs: Float[Array, "P D"],
    start: Int[Array, ""],
    count: Int[Array, ""],
    matrices: FeedForward,
    max_rows: int,
    tile: int,
) -> Float[Array, "P D"]:
    """Writes an expert's output for `count` sorted rows from `start`, at most `max_rows`, with the
    products of `grouped_product`."""
    rows = jax.lax.dynamic_slice_in_dim(inputs, start, max_rows)
    before = jax.lax.dynamic_slice_in_dim(outputs, start, max_rows)

    def product(rows: Float[Array, "R In"], matrix: Weight) -> Float[Array, "R Out"]:
        one_group = jax.tree.map(lambda leaf: leaf[None], _unpacked(matrix, rows.dtype))
        return product_by_tile(rows, one_group, count[None], tile)

    gated = jax.nn.silu(product(rows, matrices.gate)) * product(rows, matrices.up)
    result = product(gated, matrices.down)
    result = jnp.where(jnp.arange(max_rows)[:, None] < count, result, before)
    return jax.lax.dynamic_update_slice_in_dim(outputs, result, start, axis=0)


def _unpacked(matrix: Weight, dtype: DTypeLike) -> Weight:
    """Returns a matrix unchanged, or as floats if it is int4 in a file's bytes."""
    if not (isinstance(matrix, QuantArray) and matrix.values.dtype == jnp.uint8):
        return matrix
    halves = jnp.concatenate([matrix.values & 15, matrix.values >> 4], axis=1)
    # Without the barrier, XLA would unpack the values again for every tile.
    values = jax.lax.optimization_barrier(halves.astype(jnp.int8) - 8)
    return jax.lax.optimization_barrier(dequantize(QuantArray(values, matrix.scale), dtype))
