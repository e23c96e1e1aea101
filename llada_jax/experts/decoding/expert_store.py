"""Where the experts of a model lie: all on the host, some in slots on the accelerator."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from llada_jax.config import require
from llada_jax.model.moe import Chosen, weighted_experts
from llada_jax.model.params import Experts, ModelParams
from llada_jax.model.quantize import QuantArray


class ExpertStore:
    """Holds the experts of one model, and runs them where they lie.

    Every layer has the same number of slots; one more slot for the whole model is what experts pass
    through that are staged for one use.
    """

    def __init__(self, params: ModelParams, resident: Bool[np.ndarray, "N E"]) -> None:
        """Puts the `resident` experts, as many of each routed layer, into its slots.

        Raises ValueError for a model with quantized experts.
        """
        layers = [layer.ffn for layer in params.layers if isinstance(layer.ffn, Experts)]
        require(
            not any(isinstance(each.gate, QuantArray) for each in layers),
            "the experts are quantized; allowed: float32 or bfloat16",
        )
        self._host = [
            [np.asarray(matrix, np.float32) for matrix in (each.gate, each.up, each.down)]
            for each in layers
        ]
        self._dtype = layers[0].router.dtype
        chosen = [np.flatnonzero(each).tolist() for each in resident]
        self._slots = len(chosen[0])
        self._slot_of = [{expert: slot for slot, expert in enumerate(each)} for each in chosen]
        self._device = [  # the last slot is the one that experts pass through
            tuple(jnp.asarray(matrix[[*each, 0]], self._dtype) for matrix in on_host)
            for each, on_host in zip(chosen, self._host, strict=True)
        ]
        self.moved = 0

    def resident(self, layer: int) -> set[int]:
        """Returns the experts in the slots of a routed layer."""
        return set(self._slot_of[layer])

    def put(self, layer: int, expert: int, victim: int) -> None:
        """Moves an expert into the slot of another one."""
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
        self._write(layer, expert, self._slots)
        return self._run(layer, x, routing, {expert: self._slots})

    def _run(
        self,
        layer: int,
        x: Float[np.ndarray, "T D"],
        routing: Chosen,
        slot_of: dict[int, int],
    ) -> Float[np.ndarray, "T D"]:
        table = np.full(len(self._host[layer][0]), -1, np.int32)
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
        rows, place = np.nonzero(np.asarray(routing.experts) == expert)
        gate, up, down = (matrix[expert] for matrix in self._host[layer])
        gated = x[rows] @ gate.T
        hidden = gated / (1 + np.exp(-gated)) * (x[rows] @ up.T)
        total = np.zeros_like(x)
        total[rows] = hidden @ down.T * np.asarray(routing.weights)[rows, place, None]
        return total


@partial(jax.jit, donate_argnums=0)
def _written(slots: tuple[Array, ...], expert: tuple[Array, ...], slot: int) -> tuple[Array, ...]:
    return tuple(all_.at[slot].set(one) for all_, one in zip(slots, expert, strict=True))


@jax.jit
def _slots_product(x, slots, weights, gate, up, down):
    experts = Experts(router=gate[:, 0], selection_bias=None, gate=gate, up=up, down=down,
                      shared=None)  # fmt: skip
    return weighted_experts(x, Chosen(slots, weights), experts)
