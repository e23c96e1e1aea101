"""Parameters drawn with NumPy, as `init_params` draws them: no program is compiled for a shape."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llada_jax.config import ModelConfig
from llada_jax.model.params import ModelParams, abstract_params


def drawn_params(config: ModelConfig, seed: int = 0) -> ModelParams:
    """Returns float32 parameters; norms are ones, and biases zeros."""
    rng = np.random.default_rng(seed)

    def drawn(path: tuple[Any, ...], spec: Any) -> jax.Array:
        if spec.init_std is None:
            return jnp.ones(spec.shape, jnp.float32)
        to_residual = path[-1].name in ("output", "down")
        std = spec.init_std * ((2 * config.n_layers) ** -0.5 if to_residual else 1.0)
        return jnp.asarray(std * rng.standard_normal(spec.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(drawn, abstract_params(config))
