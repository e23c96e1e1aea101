"""A forward whose experts do not all lie on the accelerator: slots for some, the host for the rest.

Who runs an expert is a planner's choice, layer by layer, once the router has spoken. The output is
that of the plain forward whatever it chooses.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from llada_jax.config import ModelConfig, require
from llada_jax.experts.decoding.expert_store import ExpertStore
from llada_jax.experts.decoding.recorded_forward import RoutingRecord, routed
from llada_jax.experts.policy_run import LayerDecision
from llada_jax.experts.schedule import Schedule
from llada_jax.model.forward import LayerHooks, forward_rows
from llada_jax.model.layers import feed_forward
from llada_jax.model.moe import Chosen
from llada_jax.model.params import Experts, Layer, ModelParams
from llada_jax.model.quantize import linear
from llada_jax.types import KVCache, Rows, RowsOut

Planner = Callable[[int, RoutingRecord], LayerDecision]
"""Decides a routed layer by its number, which counts routed layers only, and its routing in NumPy:
every expert that a live row takes is run once, by the CPU or from a slot."""

_linear = jax.jit(linear)
_dense = jax.jit(feed_forward)
_routed = jax.jit(routed, static_argnums=(2, 3))


def forward_rows_budgeted(
    params: ModelParams,
    config: ModelConfig,
    rows: Rows,
    cache: KVCache,
    store: ExpertStore,
    plan: Planner,
) -> RowsOut:
    """Runs `forward_rows` layer by layer from Python, with the experts of a store where `plan`
    says.

    Raises ValueError where a plan leaves out an expert that a live row takes, or names one twice.
    """
    live = np.asarray(rows.live).reshape(-1)

    def feed_forward_of(
        x: Float[Array, "B R D"], layer: Layer, config: ModelConfig, index: int
    ) -> Float[Array, "B R D"]:
        if not isinstance(layer.ffn, Experts):
            return _dense(x, layer.ffn)
        assert config.moe is not None
        number = index - config.moe.first_layer
        routing, record = jax.tree.map(np.asarray, _routed(params, x, config, index))
        decision = plan(number, record)
        _require_each_once(decision.schedule, routing.experts[live])
        mixed = _run_experts(store, number, x, routing, decision)
        return mixed if layer.ffn.shared is None else mixed + _dense(x, layer.ffn.shared)

    return forward_rows(params, config, rows, cache, LayerHooks(_linear, feed_forward_of))


def _require_each_once(schedule: Schedule, experts: Int[np.ndarray, "r k"]) -> None:
    placed, active = sorted([*schedule.cpu, *schedule.accelerator]), np.unique(experts).tolist()
    require(
        placed == sorted({*placed, *active}),
        f"the plan runs experts {placed}; allowed: each of {active} once",
    )


def _run_experts(
    store: ExpertStore,
    layer: int,
    x: Float[Array, "B R D"],
    routing: Chosen,
    decision: LayerDecision,
) -> Float[Array, "B R D"]:
    """Returns the experts' share of a layer's output; leaves the store as the plan wants it."""
    flat = np.asarray(x, np.float32).reshape(-1, x.shape[-1])
    here = store.resident(layer)
    schedule = decision.schedule
    total = store.from_slots(layer, flat, routing, here & set(schedule.accelerator))
    stays = set(np.flatnonzero(decision.resident_after).tolist())
    leaving = sorted(here - stays)
    for expert in schedule.accelerator:
        if expert in here:
            continue
        if expert in stays and leaving:
            store.put(layer, expert, leaving.pop())
            total = total + store.from_slots(layer, flat, routing, {expert})
        else:
            total = total + store.passing_through(layer, flat, routing, expert)
    for expert in schedule.cpu:
        total = total + store.on_host(layer, flat, routing, expert)
    for swap in decision.swaps:
        store.put(*swap)
    return jnp.asarray(total.reshape(x.shape), x.dtype)
