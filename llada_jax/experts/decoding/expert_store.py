"""Where the experts of a model lie: all on the host, some in slots on the accelerator."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from llada_jax.config import ModelConfig, MoEConfig, require
from llada_jax.model.moe import Chosen, weighted_experts
from llada_jax.model.params import Experts, ModelParams
from llada_jax.model.quantize import QuantArray


class ExpertStore:
    """Holds the experts of one model, and runs them where they lie.

    Every layer has the same number of slots; one more slot for the whole model is what experts pass
    through that are staged for one use.
    """

    def __init__(
        self, params: ModelParams, config: ModelConfig, resident: Sequence[Sequence[int]]
    ) -> None:
        """Puts the `resident` experts of each routed layer into its slots.

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
        """Returns the experts in the slots of a routed layer."""
        return set(self._slot_of[layer])

    def put(self, layer: int, expert: int, victim: int) -> None:
        """Moves an expert into the slot of another one."""
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
        self, layer: int, x: Float[np.ndarray, "T D"], routing: Chosen, experts: set[int]
    ) -> Float[np.ndarray, "T D"]:
        """Returns the share of some resident experts in the layer's output, run in one batch."""
        return self._run(layer, x, routing, {e: self._slot_of[layer][e] for e in experts})

    def passing_through(
        self, layer: int, x: Float[np.ndarray, "T D"], routing: Chosen, expert: int
    ) -> Float[np.ndarray, "T D"]:
        """Returns the share of an expert that is staged for this one use."""
        self._write(layer, expert, self.slots)
        return self._run(layer, x, routing, {expert: self.slots})

    def _run(
        self,
        layer: int,
        x: Float[np.ndarray, "T D"],
        routing: Chosen,
        slot_of: dict[int, int],
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
        self, layer: int, x: Float[np.ndarray, "T D"], routing: Chosen, expert: int
    ) -> Float[np.ndarray, "T D"]:
        """Returns the share of an expert that the host runs, on the rows that want it."""
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
    return weighted_experts(x, Chosen(slots, weights), experts)
