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
from jaxtyping import Array, Float, Int

from llada_jax.config import ModelConfig, MoEConfig, require
from llada_jax.model.forward import attention_half
from llada_jax.model.layers import Rotation, attention_bias, feed_forward, rms_norm, rotation
from llada_jax.model.moe import Routing, route, router_scores, weighted_experts
from llada_jax.model.params import Experts, ModelParams
from llada_jax.model.quantize import QuantArray
from llada_jax.model.recorded import foreseen
from llada_jax.types import KVCache, Rows, RowsOut


class LayerRouting(NamedTuple):
    """What a planner is told of one routed layer; T rows of the whole batch."""

    layer: int
    """Counts routed layers only."""
    experts: Int[np.ndarray, "T k"]
    scores: Float[np.ndarray, "T E"]
    foreseen: Int[np.ndarray, "A T k"]
    live: np.ndarray
    """Rows that are not padding; the others need no expert."""


class Placement(NamedTuple):
    """Who runs the active experts of a layer, and what moves."""

    host: Sequence[int]
    slots: Sequence[int]
    """Run from slots: the resident ones, and those that are staged first."""
    resident_after: Sequence[int]
    """What the layer's slots hold after it."""
    staged: Sequence[tuple[int, int, int]] = ()
    """(layer, expert, expert to replace): moved after it, ahead of time."""


class PlansLayers(Protocol):
    def __call__(self, routing: LayerRouting, /) -> Placement: ...


class ExpertStore:
    """The experts of one model: all on the host, some in slots on the accelerator.

    Every layer has the same number of slots; one more slot for the whole model is what experts pass
    through that are staged for one use.
    """

    def __init__(
        self, params: ModelParams, config: ModelConfig, resident: Sequence[Sequence[int]]
    ) -> None:
        """`resident` names the experts that each routed layer starts with.

        Raises ValueError for a model without experts or with quantized ones, and for residents that
        are none, unequal in number, or no experts of the model.
        """
        require(config.moe is not None, "the model has no routed experts; allowed: one that has")
        assert config.moe is not None
        self.layers = [layer.ffn for layer in params.layers if isinstance(layer.ffn, Experts)]
        self._check(config.moe, resident)
        self._host = [[np.asarray(m, np.float32) for m in (e.gate, e.up, e.down)]
                      for e in self.layers]  # fmt: skip
        self.slots = len(resident[0])
        self._slot_of = [{int(e): slot for slot, e in enumerate(each)} for each in resident]
        self._dtype = self.layers[0].router.dtype
        self._device = [self._filled(layer, each) for layer, each in enumerate(resident)]
        self.moved = 0

    def _check(self, moe: MoEConfig, resident: Sequence[Sequence[int]]) -> None:
        require(
            not any(isinstance(e.gate, QuantArray) for e in self.layers),
            "the experts are quantized; allowed: float32 or bfloat16",
        )
        require(
            len(resident) == len(self.layers),
            f"residents of {len(resident)} layers are given; allowed: {len(self.layers)}",
        )
        sizes = {len(set(each)) for each in resident} | {len(each) for each in resident}
        require(
            len(sizes) == 1 and 0 < min(sizes) <= moe.n_experts,
            f"layers have {sorted(sizes)} resident experts; allowed: one number for all, 1 to "
            f"{moe.n_experts}",
        )
        named = {int(e) for each in resident for e in each}
        require(
            named <= set(range(moe.n_experts)),
            f"residents are {sorted(named)}; allowed: 0 to {moe.n_experts - 1}",
        )

    def _filled(self, layer: int, experts: Sequence[int]) -> tuple[Array, ...]:
        chosen = [*map(int, experts), 0]  # the last slot is the one that experts pass through
        return tuple(jnp.asarray(m[chosen], self._dtype) for m in self._host[layer])

    def resident(self, layer: int) -> set[int]:
        """Experts in the slots of a routed layer."""
        return set(self._slot_of[layer])

    def put(self, layer: int, expert: int, victim: int) -> None:
        """Move an expert into the slot of another one."""
        require(
            victim in self._slot_of[layer] and expert not in self._slot_of[layer],
            f"layer {layer} holds {sorted(self._slot_of[layer])}; cannot replace {victim} by "
            f"{expert}",
        )
        slot = self._slot_of[layer].pop(victim)
        self._slot_of[layer][expert] = slot
        self._write(layer, expert, slot)

    def _write(self, layer: int, expert: int, slot: int) -> None:
        self.moved += 1
        matrices = tuple(on_host[expert].astype(self._dtype) for on_host in self._host[layer])
        self._device[layer] = _written(self._device[layer], matrices, slot)

    def from_slots(
        self, layer: int, x: Float[np.ndarray, "T D"], routing: Routing, experts: set[int]
    ) -> Float[np.ndarray, "T D"]:
        """The share of some resident experts in the layer's output, in one batch."""
        return self._run(layer, x, routing, {e: self._slot_of[layer][e] for e in experts})

    def passing_through(
        self, layer: int, x: Float[np.ndarray, "T D"], routing: Routing, expert: int
    ) -> Float[np.ndarray, "T D"]:
        """The share of an expert that is staged for this one use."""
        self._write(layer, expert, self.slots)
        return self._run(layer, x, routing, {expert: self.slots})

    def _run(
        self, layer: int, x: Float[np.ndarray, "T D"], routing: Routing, slot_of: dict[int, int]
    ) -> Float[np.ndarray, "T D"]:
        n_experts = self._host[layer][0].shape[0]
        table = np.full(n_experts, -1, np.int32)
        table[list(slot_of)] = list(slot_of.values())
        slots = table[np.asarray(routing.experts)]
        weights = np.where(slots >= 0, np.asarray(routing.weights), 0).astype(np.float32)
        inputs = jnp.asarray(x, self._dtype)
        out = _slots_product(inputs, np.maximum(slots, 0), weights, *self._device[layer])
        return np.asarray(out, np.float32)

    def on_host(
        self, layer: int, x: Float[np.ndarray, "T D"], routing: Routing, expert: int
    ) -> Float[np.ndarray, "T D"]:
        """The share of an expert that the host runs, on the rows that want it."""
        chosen, weights = np.asarray(routing.experts), np.asarray(routing.weights)
        rows, place = np.nonzero(chosen == expert)
        gate, up, down = (matrix[expert] for matrix in self._host[layer])
        inputs = x[rows]
        gated = inputs @ gate.T
        hidden = gated / (1 + np.exp(-gated)) * (inputs @ up.T)
        total = np.zeros_like(x)
        total[rows] = hidden @ down.T * weights[rows, place, None]
        return total


@partial(jax.jit, donate_argnums=0)
def _written(slots: tuple[Array, ...], expert: tuple[Array, ...], slot: int) -> tuple[Array, ...]:
    return tuple(all_.at[slot].set(one) for all_, one in zip(slots, expert, strict=True))


@jax.jit
def _slots_product(x, slots, weights, gate, up, down):
    experts = Experts(router=gate[:, 0], selection_bias=None, gate=gate, up=up, down=down,
                      shared=None)  # fmt: skip
    return weighted_experts(x, Routing(slots, weights), experts)


class _Start(NamedTuple):
    hidden: Float[Array, "B R D"]
    angles: Rotation
    bias: Float[Array, "B R T"]


@partial(jax.jit, static_argnums=1)
def _start(params: ModelParams, config: ModelConfig, rows: Rows) -> _Start:
    return _Start(
        params.embedding[rows.tokens], rotation(config, rows.positions), attention_bias(rows)
    )


@partial(jax.jit, static_argnums=(2, 3))
def _router(params: ModelParams, x: Float[Array, "B R D"], config: ModelConfig, index: int):
    """The routing of a layer's rows, its scores, and what the next layers' gates foresee."""
    ffn, moe = params.layers[index].ffn, config.moe
    assert isinstance(ffn, Experts) and moe is not None
    flat = x.reshape(-1, x.shape[-1])
    return route(flat, ffn, moe), router_scores(flat, ffn, moe), foreseen(params, flat, moe, index)


@partial(jax.jit, static_argnums=1)
def _end(params: ModelParams, config: ModelConfig, hidden: Array, keys: list, values: list):
    hidden = rms_norm(hidden, params.final_norm, config.norm_eps)
    return RowsOut(hidden, jnp.stack(keys), jnp.stack(values))


_attention_half = jax.jit(attention_half, static_argnums=1)
_dense = jax.jit(feed_forward)
_sum = jax.jit(lambda *parts: sum(parts[1:], parts[0]))


def forward_rows_budgeted(
    params: ModelParams,
    config: ModelConfig,
    rows: Rows,
    cache: KVCache,
    store: ExpertStore,
    plan: PlansLayers,
) -> RowsOut:
    """`forward_rows` with the experts of a store, each run where `plan` says.

    Runs layer by layer from Python. Raises ValueError where a plan leaves out an active expert, or
    names one twice.
    """
    assert config.moe is not None
    hidden, angles, bias = _start(params, config, rows)
    live = np.asarray(rows.live).reshape(-1)
    keys, values = [], []
    for index, layer in enumerate(params.layers):
        hidden, normed, key, value = _attention_half(
            layer, config, hidden, angles, bias, cache.keys[index], cache.values[index]
        )
        keys.append(key)
        values.append(value)
        if isinstance(layer.ffn, Experts):
            number = index - config.moe.first_layer
            routing, scores, ahead = jax.tree.map(
                np.asarray, _router(params, normed, config, index)
            )
            placement = plan(LayerRouting(number, routing.experts, scores, ahead, live))
            check_placement(placement, routing.experts[live])
            mixed = _planned(store, number, normed, routing, placement)
            shared = [] if layer.ffn.shared is None else [_dense(normed, layer.ffn.shared)]
            hidden = _sum(hidden, mixed, *shared)
        else:
            hidden = _sum(hidden, _dense(normed, layer.ffn))
    return _end(params, config, hidden, keys, values)


def check_placement(placement: Placement, experts: Int[np.ndarray, "r k"]) -> None:
    """Every expert of the live rows is run exactly once."""
    placed = [*placement.host, *placement.slots]
    active = set(np.unique(experts).tolist())
    require(
        len(placed) == len(set(placed)) and set(placed) >= active,
        f"the plan runs experts {sorted(placed)}; allowed: each of {sorted(active)} once",
    )


def _planned(
    store: ExpertStore,
    layer: int,
    x: Float[Array, "B R D"],
    routing: Routing,
    placement: Placement,
) -> Float[Array, "B R D"]:
    """The experts' share of a layer's output; afterwards the store is as the plan wants it."""
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
