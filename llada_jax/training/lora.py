"""LoRA: narrow matrices beside those of a model that stay as they are (arXiv 2106.09685).

What is trained is a tree of its own, by the names of the matrices, so that a checkpoint and the
optimizer hold nothing of the base, whose matrices may be quantized.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from llada_jax.config import LoraConfig, ModelConfig, require
from llada_jax.model.params import ModelParams, abstract_params, parameter_name
from llada_jax.model.quantize import AdaptedWeight, dequantize, is_quantized


class Adapter(NamedTuple):
    """What is added to a matrix [Out, In]: alpha / rank * up @ down."""

    down: Float[Array, "rank In"]
    up: Float[Array, "Out rank"]


Adapters = Mapping[str, Adapter]
"""By the names of matrices: `layers.3.attention.query`."""


def init_adapters(model: ModelConfig, lora: LoraConfig, key: Key[Array, ""]) -> dict[str, Adapter]:
    """Draws float32 adapters that add nothing yet: `down` is normal, `up` is zero.

    Raises ValueError where the model has no matrix of the names that are wanted.
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
            inputs**-0.5 * jax.random.normal(each, (lora.rank, inputs)),
            jnp.zeros((outputs, lora.rank)),
        )
        for each, (name, (outputs, inputs)) in zip(keys, specs.items(), strict=True)
    }


def with_adapters(base: ModelParams, adapters: Adapters, lora: LoraConfig) -> ModelParams:
    """Returns the base with adapters beside its matrices: what a training step runs."""

    def adapted(path: tuple[Any, ...], leaf: Any) -> Any:
        adapter = adapters.get(parameter_name(path))
        if adapter is None:
            return leaf
        return AdaptedWeight(leaf, adapter.down, lora.alpha / lora.rank * adapter.up)

    return jax.tree.map_with_path(adapted, base, is_leaf=is_quantized)


def merged(base: ModelParams, adapters: Adapters, lora: LoraConfig) -> ModelParams:
    """Returns plain float32 parameters that do what base and adapters do, up to rounding."""

    def plain(path: tuple[Any, ...], leaf: Any) -> Any:
        whole = dequantize(leaf, jnp.float32) if is_quantized(leaf) else leaf
        if (adapter := adapters.get(parameter_name(path))) is not None:
            added = lora.alpha / lora.rank * adapter.up @ adapter.down
            whole = whole.astype(jnp.float32) + added
        return jax.block_until_ready(whole.astype(jnp.float32))

    return jax.tree.map_with_path(plain, base, is_leaf=is_quantized)
