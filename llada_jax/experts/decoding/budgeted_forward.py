"""A forward whose experts do not all lie on the accelerator: slots for some, the host for the rest.

Who runs an expert is a planner's choice, layer by layer, once the router has spoken. The output is
that of the plain forward whatever it chooses.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import ModelConfig, require
from llada_jax.experts.decoding.expert_store import ExpertStore
from llada_jax.experts.decoding.recorded_forward import foreseen
from llada_jax.model.forward import LayerHooks, forward_rows
from llada_jax.model.layers import feed_forward
from llada_jax.model.moe import Chosen, route, router_scores
from llada_jax.model.params import Experts, Layer, ModelParams
from llada_jax.model.quantize import linear
from llada_jax.types import KVCache, Rows, RowsOut


class LayerRouting(NamedTuple):
    """What a planner is told of one routed layer; T rows of the whole batch."""

    layer: int
    """Counts routed layers only."""
    experts: Int[np.ndarray, "T k"]
    scores: Float[np.ndarray, "T E"]
    foreseen: Int[np.ndarray, "A T k"]
    live: Bool[np.ndarray, " T"]
    """Rows that are not padding; the others need no expert."""


class ExpertPlacement(NamedTuple):
    """Who runs the active experts of a layer, and what moves."""

    host: Sequence[int]
    slots: Sequence[int]
    """Run from slots: the resident ones, and those that are staged first."""
    resident_after: Sequence[int]
    """What the layer's slots hold after it."""
    staged: Sequence[tuple[int, int, int]] = ()
    """(layer, expert, expert to replace): moved after it, ahead of time."""


class PlansLayers(Protocol):
    def __call__(self, routing: LayerRouting, /) -> ExpertPlacement: ...


def forward_rows_budgeted(
    params: ModelParams,
    config: ModelConfig,
    rows: Rows,
    cache: KVCache,
    store: ExpertStore,
    plan: PlansLayers,
) -> RowsOut:
    """Runs `forward_rows` with the experts of a store, each where `plan` says.

    Runs layer by layer from Python. Raises ValueError where a plan leaves out an active expert, or
    names one twice.
    """
    live = np.asarray(rows.live).reshape(-1)

    def feed_forward_of(
        x: Float[Array, "B R D"], layer: Layer, config: ModelConfig, index: int
    ) -> Float[Array, "B R D"]:
        if not isinstance(layer.ffn, Experts):
            return _dense(x, layer.ffn)
        assert config.moe is not None
        number = index - config.moe.first_layer
        routing, scores, ahead = jax.tree.map(np.asarray, _router(params, x, config, index))
        placement = plan(LayerRouting(number, routing.experts, scores, ahead, live))
        _check_placement(placement, routing.experts[live])
        mixed = _run_experts(store, number, x, routing, placement)
        return mixed if layer.ffn.shared is None else mixed + _dense(x, layer.ffn.shared)

    return forward_rows(params, config, rows, cache, LayerHooks(_linear, feed_forward_of))


_linear = jax.jit(linear)
_dense = jax.jit(feed_forward)


@partial(jax.jit, static_argnums=(2, 3))
def _router(
    params: ModelParams, x: Float[Array, "B R D"], config: ModelConfig, index: int
) -> tuple[Chosen, Float[Array, "T E"], Int[Array, "A T k"]]:
    """Returns the routing of a layer's rows, its scores, and what the next gates foresee."""
    ffn, moe = params.layers[index].ffn, config.moe
    assert isinstance(ffn, Experts) and moe is not None
    flat = x.reshape(-1, x.shape[-1])
    return route(flat, ffn, moe), router_scores(flat, ffn, moe), foreseen(params, flat, moe, index)


def _check_placement(placement: ExpertPlacement, experts: Int[np.ndarray, "r k"]) -> None:
    """Refuses a plan that does not run every expert of the live rows exactly once."""
    placed = [*placement.host, *placement.slots]
    active = set(np.unique(experts).tolist())
    require(
        len(placed) == len(set(placed)) and set(placed) >= active,
        f"the plan runs experts {sorted(placed)}; allowed: each of {sorted(active)} once",
    )


def _run_experts(
    store: ExpertStore,
    layer: int,
    x: Float[Array, "B R D"],
    routing: Chosen,
    placement: ExpertPlacement,
) -> Float[Array, "B R D"]:
    """Returns the experts' share of a layer's output; leaves the store as the plan wants it."""
    flat = np.asarray(x, np.float32).reshape(-1, x.shape[-1])
    here = store.resident(layer)
    total = store.from_slots(layer, flat, routing, here & set(placement.slots))
    stays = set(map(int, placement.resident_after))
    leaving = sorted(here - stays)
    for expert in placement.slots:
        if expert in here:
            continue
        if expert in stays and leaving:
            store.put(layer, expert, leaving.pop())
            total = total + store.from_slots(layer, flat, routing, {expert})
        else:
            total = total + store.passing_through(layer, flat, routing, expert)
    for expert in placement.host:
        total = total + store.on_host(layer, flat, routing, expert)
    for target, expert, victim in placement.staged:
        store.put(target, expert, victim)
    return jnp.asarray(total.reshape(x.shape), x.dtype)
