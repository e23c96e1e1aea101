"""The one primitive of decoding: rows of a canvas, their visibility, and the cache they write.

A row sees every position that its caller allows: the other rows of the forward, and each cached
position that none of them replaces. An order of positions makes attention causal: a row sees
positions of the same order and of lower ones.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.types import KVCache, Rows, RowsOut

MAX_CANVAS_LENGTH = 1 << 24  # added to a mask's order, so that masks come after all tokens


def make_rows(
    tokens: Int[Array, "B R"],
    positions: Int[Array, "B R"],
    live: Bool[Array, "B R"],
    cached: Bool[Array, "B L"],
    row_order: Int[Array, "B R"] | None = None,
    cache_order: Int[Array, "B L"] | None = None,
) -> Rows:
    """Returns rows that see each other and the `cached` positions that no live row replaces.

    With `row_order` and `cache_order` a row sees only positions of the same order or lower.
    """
    slots = jnp.arange(cached.shape[1], dtype=positions.dtype)[None, None, :]
    replaced = ((positions[:, :, None] == slots) & live[:, :, None]).any(axis=1)  # [B, L]
    sees_cache = (cached & ~replaced)[:, None, :]
    sees_rows = live[:, None, :]
    if row_order is not None and cache_order is not None:
        sees_cache = sees_cache & (cache_order[:, None, :] <= row_order[:, :, None])
        sees_rows = sees_rows & (row_order[:, None, :] <= row_order[:, :, None])
    batch, n_rows = tokens.shape
    return Rows(
        tokens,
        positions,
        live,
        jnp.broadcast_to(sees_cache, (batch, n_rows, cached.shape[1])),
        jnp.broadcast_to(sees_rows, (batch, n_rows, n_rows)),
    )


def filled_order(masked: Bool[Array, "B R"], positions: Int[Array, "B R"]) -> Int[Array, "B R"]:
    """Returns the order in which tokens come before masks, both by position."""
    return positions + jnp.where(masked, jnp.int32(MAX_CANVAS_LENGTH), 0)


def write_rows(cache: KVCache, rows: Rows, out: RowsOut) -> KVCache:
    """Returns the cache with the written rows' keys and values at their positions."""
    slots = jnp.where(rows.written, rows.positions, cache.length)  # out of range: dropped
    write = partial(write_at, slots)
    return jax.tree.map(write, cache, KVCache(out.keys, out.values))


@jax.jit  # one function of the program, which all layers call
def write_at(
    slots: Int[Array, "B R"], cached: Float[Array, "B K L Dh"], rows: Float[Array, "B R K Dh"]
) -> Float[Array, "B K L Dh"]:
    """Returns a layer's cache with rows at their slots; slots beyond the cache are dropped."""
    batch = jnp.arange(len(slots))[:, None]
    return cached.at[batch, :, slots].set(rows.astype(cached.dtype), mode="drop")
