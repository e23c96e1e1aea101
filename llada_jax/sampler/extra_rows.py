"""Extra rows, beside the window's: shadows, refreshes of tokens that it left behind, and a branch.

They follow the window's rows in the same forward, and no row of the window sees them. So with them
or without them, the window's own results are the same.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from llada_jax.sampler.canvas import take
from llada_jax.sampler.windows.window import Span
from llada_jax.types import Rows

SHADOW, REFRESH, PROBE, BRANCH, NOTHING, WINDOW = range(6)
"""What a row is.

- SHADOW feeds [MASK] at a position whose token it does not see: what would stand there?
- REFRESH feeds a token that left the window, for its key and value; it sees the cache and itself.
- PROBE is the shadow of such a token.
- BRANCH belongs to the step after this one, as it will be if the hypothesis comes true.
"""
Order = Callable[[Int[Array, "B R"]], Int[Array, "B R"] | None]
"""Order of positions, where a row sees only its own order and lower ones."""


class ExtraRows(NamedTuple):
    """Which positions have a row of which kind."""

    kinds: Bool[Array, "B 4 L"]  # shadow, refresh, probe, branch

    def at(self, kind: int) -> Bool[Array, "B L"]:
        """Returns the positions that have a row of this kind."""
        return self.kinds[:, kind]

    @property
    def count(self) -> Int[Array, " B"]:
        return self.kinds.sum(axis=(1, 2), dtype=jnp.int32)

    @property
    def slots(self) -> Int[Array, "B 4 L"]:
        """The place of each row behind the window's; that of the one before where there is none."""
        flat = self.kinds.reshape(self.kinds.shape[0], -1)
        return (jnp.cumsum(flat, axis=1, dtype=jnp.int32) - 1).reshape(self.kinds.shape)


def extra_rows(
    shadow: Bool[Array, "B L"] | None = None,
    refresh: Bool[Array, "B L"] | None = None,
    probe: Bool[Array, "B L"] | None = None,
    branch: Bool[Array, "B L"] | None = None,
    *,
    like: Array,
) -> ExtraRows:
    """Returns extra rows of these kinds, for canvases of the shape of `like`."""
    none = jnp.zeros(like.shape, bool)
    kinds = [none if kind is None else kind for kind in (shadow, refresh, probe, branch)]
    return ExtraRows(jnp.stack(kinds, axis=1))


def packed(flags: Bool[Array, "B M"], size: int) -> Int[Array, "B S"]:
    """Returns where the first `size` flags are, in order. M stands where there is none."""
    batch, length = flags.shape
    slot = jnp.where(flags, jnp.cumsum(flags, axis=1, dtype=jnp.int32) - 1, size)
    index = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), flags.shape)
    empty = jnp.full((batch, size), length, jnp.int32)
    return empty.at[jnp.arange(batch)[:, None], slot].set(index, mode="drop")


def rows_with(
    extra: ExtraRows,
    span: Span,
    n_rows: int,
    fed: Int[Array, "B L"],
    branch_fed: Int[Array, "B L"],
    cached: Bool[Array, "B L"],
    order: Order,
    branch_start: Int[Array, " B"],
    mask_id: int,
    *,
    order_binds_refresh: bool,
) -> Rows:
    """Returns the window's rows, then the extra ones.

    Args:
      fed: what rows of the window feed, by position; `branch_fed` what those of the branch do.
      cached: positions that the step may read from the cache.
      branch_start: the branch sees the window's rows before it, which will be cached by then.
      order_binds_refresh: refreshed tokens see no position of a later order either.
    """
    index = jnp.arange(n_rows, dtype=jnp.int32)[None, :]
    batch, length = fed.shape
    of_window = index < (span.stop - span.start)[:, None]
    behind = index - (span.stop - span.start)[:, None]
    entry = take(packed(extra.kinds.reshape(batch, -1), n_rows), jnp.maximum(behind, 0))
    kind = jnp.where(of_window, WINDOW, entry // length)
    positions = jnp.where(of_window, span.start[:, None] + index, entry % length)
    tokens = jnp.where((kind == SHADOW) | (kind == PROBE), jnp.int32(mask_id), take(fed, positions))
    tokens = jnp.where(kind == BRANCH, take(branch_fed, positions), tokens)
    slots = jnp.broadcast_to(jnp.arange(cached.shape[1], dtype=jnp.int32), cached.shape)
    free = (
        jnp.zeros(kind.shape, bool) if order_binds_refresh else (kind == REFRESH) | (kind == PROBE)
    )
    return Rows(
        tokens=tokens,
        positions=positions,
        live=kind != NOTHING,
        sees_cache=_sees_cache(kind, positions, slots, cached, span, order, free),
        sees_rows=_sees_rows(kind, positions, order, branch_start),
        writes=(kind == WINDOW) | (kind == REFRESH),
    )


def _sees_cache(
    kind: Int[Array, "B R"],
    positions: Int[Array, "B R"],
    slots: Int[Array, "B L"],
    cached: Bool[Array, "B L"],
    span: Span,
    order: Order,
    free: Bool[Array, "B R"],
) -> Bool[Array, "B R L"]:
    stands = (slots >= span.start[:, None]) & (slots < span.stop[:, None])
    blind = (kind == SHADOW) | (kind == REFRESH) | (kind == PROBE)  # to its own position
    own = (positions[:, :, None] == slots[:, None, :]) & blind[:, :, None]
    sees = (cached & ~stands)[:, None, :] & ~own & (kind != NOTHING)[:, :, None]
    row_order, slot_order = order(positions), order(slots)
    if row_order is not None and slot_order is not None:
        sees &= (slot_order[:, None, :] <= row_order[:, :, None]) | free[:, :, None]
    return sees


def _sees_rows(
    kind: Int[Array, "B R"],
    positions: Int[Array, "B R"],
    order: Order,
    branch_start: Int[Array, " B"],
) -> Bool[Array, "B R R"]:
    mine, other = kind[:, :, None], kind[:, None, :]
    there = positions[:, None, :]
    elsewhere = there != positions[:, :, None]
    before_branch = there < branch_start[:, None, None]
    sees = (other == WINDOW) & (
        (mine == WINDOW) | ((mine == SHADOW) & elsewhere) | ((mine == BRANCH) & before_branch)
    )
    sees |= (other == BRANCH) & (mine == BRANCH)
    row_order = order(positions)
    if row_order is not None:
        sees &= row_order[:, None, :] <= row_order[:, :, None]
    itself = jnp.eye(kind.shape[1], dtype=bool)
    return sees | (itself & (kind != NOTHING)[:, :, None])
