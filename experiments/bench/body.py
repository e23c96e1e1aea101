"""A forward of a model's body, to be timed beside its head."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

import llada_jax as lj
from llada_jax.model.forward import cache_for, forward_rows
from llada_jax.rows import make_rows
from llada_jax.types import RowsOut


def forward_of(model: lj.Model, positions: Int[Array, " R"], cached: int) -> Callable[[], RowsOut]:
    """Returns a forward of rows at some positions, all of which see so many cached ones."""
    cache = cache_for(model.params, model.config, 1, cached)
    live = jnp.ones((1, len(positions)), bool)
    tokens = jnp.ones_like(positions)[None]
    rows = make_rows(tokens, positions[None], live, jnp.ones((1, cached), bool))
    return partial(_forward, model.params, model.config, rows, cache)


_forward = jax.jit(forward_rows, static_argnums=1)
