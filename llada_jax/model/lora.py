"""LoRA: trains low-rank updates of a model's matrices, which stay unchanged (arXiv 2106.09685).

The adapters are a separate tree by the names of the matrices. So checkpoints and the optimizer's
state do not contain the base model, whose matrices may be quantized.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from llada_jax.config import LoraConfig, ModelConfig, require
from llada_jax.model.params import ModelParams, abstract_params, parameter_name
from llada_jax.model.quantize import AdaptedWeight, dequantize, is_quantized


class Adapter(NamedTuple):
    """A low-rank update of a matrix [Out, In]: alpha / rank * up @ down."""

    down: Float[Array, "rank In"]
    up: Float[Array, "Out rank"]


Adapters = Mapping[str, Adapter]
"""By the name of the matrix: `layers.3.attention.query`."""


def init_adapters(model: ModelConfig, lora: LoraConfig, key: Key[Array, ""]) -> dict[str, Adapter]:
    """Draws float32 adapters with a zero update: `down` is normal, `up` is zero.

    Raises ValueError if the model has none of the target matrices.
    """
    specs = {
        parameter_name(path): spec.shape
        for path, spec in jax.tree.leaves_with_path(abstract_params(model).layers)
        if path[-1].name in lora.targets and len(spec.shape) == 2
    }
    require(
        bool(specs),
        f"lora.targets is {list(lora.targets)}, of which this model has none outside of its routed "
        "experts; allowed: query, key, value, output",
    )
    keys = jax.random.split(key, len(specs))
    return {
        f"layers.{name}": Adapter(
            inputs**-0.5 * jax.random.normal(matrix_key, (lora.rank, inputs)),
            jnp.zeros((outputs, lora.rank)),
        )
        for matrix_key, (name, (outputs, inputs)) in zip(keys, specs.items(), strict=True)
    }


def with_adapters(
    base: ModelParams,
    adapters: Adapters,
    lora: LoraConfig,
    gate: Bool[Array, "*rows 1"] | None = None,
) -> ModelParams:
    """Returns the base with adapters next to its matrices. With a gate, only the marked rows of a
    forward use them."""

    def adapted(path: tuple[Any, ...], leaf: Any) -> Any:
        adapter = adapters.get(parameter_name(path))
        if adapter is None:
            return leaf
        return AdaptedWeight(leaf, adapter.down, lora.alpha / lora.rank * adapter.up, gate)

    return jax.tree.map_with_path(adapted, base, is_leaf=is_quantized)


def merge_adapters(base: ModelParams, adapters: Adapters, lora: LoraConfig) -> ModelParams:
    """Returns float32 parameters equivalent to base and adapters, up to rounding."""

    def merge(path: tuple[Any, ...], leaf: Any) -> Any:
        matrix = dequantize(leaf, jnp.float32) if is_quantized(leaf) else leaf
        if (adapter := adapters.get(parameter_name(path))) is not None:
            update = lora.alpha / lora.rank * adapter.up @ adapter.down
            matrix = matrix.astype(jnp.float32) + update
        # Waiting for each leaf bounds the memory of temporaries.
        return jax.block_until_ready(matrix.astype(jnp.float32))

    return jax.tree.map_with_path(merge, base, is_leaf=is_quantized)
