"""A forward whose experts are not all in memory: it runs those that are while others are read.

Which ones stay is a planner's choice, layer by layer, once the router has spoken. The output is
that of the plain forward whatever it chooses.
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
from llada_jax.experts.decoding.recording import RoutingRecord, routed
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
"""Decides a routed layer by its number, which counts routed layers only, and its routing in NumPy:
every expert that a live row takes is run once."""

_attention_half = jax.jit(attention_half, static_argnums=1)
_dense = jax.jit(feed_forward)
_routed = jax.jit(routed, static_argnums=(2, 3))


def forward_rows_budgeted(
    params: ModelParams,
    config: ModelConfig,
    rows: Rows,
    cache: KVCache,
    slots: ExpertSlots,
    plan: Planner,
) -> RowsOut:
    """Runs `forward_rows` layer by layer from Python, with experts that come and go as `plan` says.

    Raises ValueError where a plan leaves out an expert that a live row takes, or names one twice,
    and what reading an expert raises.
    """
    assert config.moe is not None
    first, live = config.moe.first_layer, np.asarray(rows.live).reshape(-1)

    def mixed(x: Float[Array, "B R D"], index: int) -> Float[Array, "B R D"]:
        number = index - first
        routing, record = _routed(params, x, config, index)
        record = jax.tree.map(np.asarray, record)
        decision = plan(number, record)
        _require_each_once(decision.schedule, record.experts[live])
        flat = x.reshape(-1, x.shape[-1])
        return _run_experts(slots, number, flat, routing, decision).reshape(x.shape)

    return forward_rows(params, config, rows, cache, run=around_experts(mixed))


def around_experts(
    mixed: Callable[[Float[Array, "B R D"], int], Float[Array, "B R D"]],
) -> RunLayer:
    """Returns what runs all of a layer but its routed experts, for which `mixed(x, index)` is
    asked: in compiled parts, each of which rounds as the plain forward does."""

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
    placed, active = sorted([*schedule.cpu, *schedule.accelerator]), np.unique(experts).tolist()
    require(
        placed == sorted({*placed, *active}),
        f"the plan runs experts {placed}; allowed: each of {active} once",
    )


def _run_experts(
    slots: ExpertSlots,
    layer: int,
    x: Float[Array, "T D"],
    routing: Routing,
    decision: LayerDecision,
) -> Float[Array, "T D"]:
    """Returns the experts' share of a layer's output; leaves the slots as the plan wants them."""
    active = [*decision.schedule.accelerator, *decision.schedule.cpu]
    stays = set(np.flatnonzero(decision.resident_after).tolist())
    for expert in slots.resident(layer) - stays - set(active):
        slots.evict(layer, expert)
    order = slots.want(layer, active)
    for swap in decision.swaps:
        if swap.layer != layer:
            slots.bring(*swap)
    inputs, place, sizes = _sorted(x, routing, decision.resident_after.size)
    sizes, outputs = np.asarray(sizes), jnp.zeros_like(inputs)
    starts = (np.cumsum(sizes) - sizes).astype(np.int32)
    tile = tile_rows(len(place), len(sizes))
    for expert in order:
        matrices, here = slots.matrices(layer, expert), (starts[expert], sizes[expert])
        outputs = run_expert(outputs, inputs, *here, matrices, len(x), tile)
        if expert in stays:
            slots.keep(layer, expert)
        else:
            outputs.block_until_ready()  # before its memory is read into
            slots.evict(layer, expert)
    outputs.block_until_ready()
    for swap in decision.swaps:
        if swap.layer == layer:
            slots.bring(*swap)
    return _summed(outputs, place, routing)


@partial(jax.jit, static_argnums=2)
def _sorted(
    x: Float[Array, "T D"], routing: Routing, n_experts: int
) -> tuple[Float[Array, "P+T D"], Int[Array, " P"], Int[Array, " E"]]:
    """Sorts rows by expert, with as many rows behind them as an expert has at the most."""
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
    most: int,
    tile: int,
) -> Float[Array, "P D"]:
    """Writes what an expert makes of `count` sorted rows from `start` on, `most` rows at the most,
    by the products of `grouped_product`."""
    rows = jax.lax.dynamic_slice_in_dim(inputs, start, most)
    before = jax.lax.dynamic_slice_in_dim(outputs, start, most)

    def product(rows: Float[Array, "R In"], matrix: Weight) -> Float[Array, "R Out"]:
        one_group = jax.tree.map(lambda leaf: leaf[None], _unpacked(matrix, rows.dtype))
        return product_by_tile(rows, one_group, count[None], tile)

    gated = jax.nn.silu(product(rows, matrices.gate)) * product(rows, matrices.up)
    made = product(gated, matrices.down)
    made = jnp.where(jnp.arange(most)[:, None] < count, made, before)
    return jax.lax.dynamic_update_slice_in_dim(outputs, made, start, axis=0)


def _unpacked(matrix: Weight, dtype: DTypeLike) -> Weight:
    """Returns a matrix as it is; of int4 in a file's bytes, the floats that they stand for."""
    if not (isinstance(matrix, QuantArray) and matrix.values.dtype == jnp.uint8):
        return matrix
    halves = jnp.concatenate([matrix.values & 15, matrix.values >> 4], axis=1)
    # Without the barrier XLA unpacks number by number again for every tile.
    values = jax.lax.optimization_barrier(halves.astype(jnp.int8) - 8)
    return jax.lax.optimization_barrier(dequantize(QuantArray(values, matrix.scale), dtype))
