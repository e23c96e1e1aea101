"""Parameters drawn with NumPy, as `init_params` draws them: no program is compiled for a shape."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llada_jax.checkpoint.tensors import kept_dtype
from llada_jax.config import ModelConfig
from llada_jax.model.params import ModelParams, abstract_params
from llada_jax.model.quantize import quantize


def drawn_params(config: ModelConfig, seed: int = 0) -> ModelParams:
    """Returns float32 parameters; norms are ones, and biases zeros."""
    rng = np.random.default_rng(seed)

    def drawn(path: tuple[Any, ...], spec: Any) -> jax.Array:
        if spec.init_std is None:
            return jnp.asarray(np.ones(spec.shape, np.float32))
        to_residual = path[-1].name in ("output", "down")
        std = spec.init_std * ((2 * config.n_layers) ** -0.5 if to_residual else 1.0)
        return jnp.asarray(std * rng.standard_normal(spec.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(drawn, abstract_params(config))


def cast_params(config: ModelConfig, params: ModelParams, dtype: str) -> ModelParams:
    """Returns float parameters as a checkpoint of them loads in a dtype."""
    bits = {"int8": 8, "int4": 4}.get(dtype)
    width = jnp.dtype("float32" if dtype == "float32" else "bfloat16")

    def cast(path: tuple[Any, ...], spec: Any, leaf: jax.Array) -> Any:
        if bits is not None and spec.quantizable:
            return quantize(np.asarray(leaf), bits)
        return leaf.astype(kept_dtype(path[-1].name, leaf.dtype, width))

    return jax.tree_util.tree_map_with_path(cast, abstract_params(config), params)
