"""A forward over whole canvases in which a row sees rows of the same or a lower order."""

import functools

import jax
import jax.numpy as jnp

from llada_jax.model.forward import cache_for, forward_rows
from llada_jax.model.head import logits_of
from llada_jax.rows import make_rows


@functools.partial(jax.jit, static_argnums=1)
def in_order(params, config, tokens, order, live=None):
    """Returns the logits [B, L, V]. Positions count live rows only."""
    live = jnp.ones(tokens.shape, bool) if live is None else live
    positions = jnp.maximum(jnp.cumsum(live, axis=1, dtype=jnp.int32) - 1, 0)
    nothing = jnp.zeros((len(tokens), 0), bool)
    rows = make_rows(tokens, positions, live, nothing, order, order[:, :0])
    cache = cache_for(params, config, len(tokens), 0)
    return logits_of(params, forward_rows(params, config, rows, cache).hidden)
