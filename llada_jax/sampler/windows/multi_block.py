"""llada.cpp's window over several blocks (arXiv 2606.13740, §3.2): it slides and grows.

A forward of few rows costs an NPU as much as a forward of a full bucket. So the window adds rows of
later blocks while few masks are left in the current one, up to the next bucket; their predictions
are drafts, which can be committed as soon as their block becomes current.
"""

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from llada_jax.config import require, require_numbers
from llada_jax.sampler.state import PROMPT, STABLE, VISIBLE, DecodeState
from llada_jax.sampler.windows.window import (
    CanvasLayout,
    RowSet,
    Span,
    Window,
    WindowContext,
    window,
)

MAX_GROWTH = 8  # blocks that a window without a latency table may grow to
MAX_SLOWDOWN = 2.0  # limit of a grown forward's time relative to the ungrown one's


class Growth(NamedTuple):
    """How far a window grows."""

    buckets: tuple[int, ...]  # numbers of rows, ascending
    grown: tuple[int, ...]  # number of rows that each full bucket grows to
    budget: int  # the most rows that a window grows to


@window(name="multi_block", cache="blockwise")
class MultiBlock(Window):
    """Slides with the committed tokens and reaches into later blocks, to predict drafts.

    It keeps its size, `block_length` positions from the first one that is not cached, also while
    tokens of the block before are still to be fed. Only if that would leave out tokens of the
    current block (drafts that it accepted), or masks that the step has to commit, it reaches to
    the end of that block. A position is cached in the forward that feeds its final token; tokens
    that are still visible when their block is finished are not waited for. If few masks are left in
    the block, the window grows until one more row would cross a bucket (but for the one that its
    rows fill already), extra rows included.

    Attributes:
      lookahead_trigger: Masks left in the current block at which the window grows into later
        blocks; 0 for never. It grows to the next bucket of `latency_table` if that takes at most
        twice the time; without a table buckets are doublings of `block_length`.
      row_budget: Most rows of a forward whose window has grown, extra rows included: what the
        memory of activations allows (`ForwardTimer.row_budget` tells it for a phone).
      draft_threshold: Drafts of this confidence are accepted when their block becomes current;
        None: those that the rule accepts.
    """

    caches_finished = True
    drafts = True

    lookahead_trigger: int = 4
    row_budget: int | None = None
    draft_threshold: float | None = None

    def __post_init__(self) -> None:
        if self.draft_threshold is not None:
            require_numbers(self, "draft_threshold", above=0, most=1)

    def check(self, context: WindowContext) -> None:
        budget, table, block = self.row_budget, context.latency_table, context.block_length
        trigger = self.lookahead_trigger
        require(
            isinstance(trigger, int) and 0 <= trigger <= block,
            f"lookahead_trigger is {trigger!r}; allowed: 0 to block_length ({block})",
        )
        require(
            budget is None or (isinstance(budget, int) and budget >= block),
            f"row_budget is {budget!r}; allowed: a whole number from block_length ({block}) on, or "
            "None",
        )
        require(
            table is None or table.rows[-1] >= block,
            f"latency_table.rows is {table and list(table.rows)}; allowed: up to block_length "
            f"({block}) at the least, which every window has",
        )

    def positions(self, state: DecodeState, context: WindowContext) -> Span:
        stop = self._stop(state, context)
        rows = stop - jnp.maximum(state.n_cached - context.shift, 0)
        rows += _extra_rows(state, stop, context)
        left = state.masks_left(context.block_length)
        late = (left > 0) & (left <= self.lookahead_trigger)
        growth = jnp.where(late, self._added_rows(rows, context), 0)
        return Span(state.n_cached, jnp.minimum(stop + growth, state.end))

    def _stop(self, state: DecodeState, context: WindowContext) -> Int[Array, " B"]:
        """Returns the end of the window before it grows. The window contains the current block's
        last token, and the masks that a step has to commit."""
        block = context.block_length
        start = state.block_start(block)
        slid = jnp.maximum(state.n_cached, state.origin) + block
        in_block = state.in_span(start, state.block_stop(block))
        masked = in_block & state.masked
        required = in_block & (~masked | (jnp.cumsum(masked, axis=1) <= context.min_commits))
        least = jnp.where(required, state.positions + 1, 0).max(axis=1)
        stop = jnp.where(slid >= least, slid, start + block)
        return jnp.minimum(stop, state.end)

    def _added_rows(self, rows: Int[Array, " B"], context: WindowContext) -> Int[Array, " B"]:
        """Returns how many positions are added to a forward of `rows` rows."""
        growth = self.growth(context)
        buckets = jnp.asarray((*growth.buckets, 0), rows.dtype)  # 0: too many rows for any bucket
        grown = jnp.asarray((*growth.grown, 0), rows.dtype)
        bucket = jnp.searchsorted(buckets[:-1], rows, method="compare_all")
        reached = jnp.where(rows == buckets[bucket], grown[bucket], buckets[bucket])
        return jnp.maximum(jnp.minimum(reached, growth.budget) - rows, 0)

    def growth(self, context: WindowContext) -> Growth:
        """Returns the buckets that the window grows to, and how far."""
        block, table = context.block_length, context.latency_table
        doublings = (block << i for i in range(1, MAX_GROWTH.bit_length()))
        buckets = table.rows if table else tuple(sorted({block + context.shift, *doublings}))
        larger = (*buckets[1:], buckets[-1])
        if table is not None:
            ms = dict(zip(table.rows, table.ms, strict=True))
            larger = tuple(
                more if ms[more] <= MAX_SLOWDOWN * ms[rows] else rows
                for rows, more in zip(buckets, larger, strict=True)
            )
        return Growth(buckets, larger, min(buckets[-1], self.row_budget or buckets[-1]))

    def cached_after(
        self, state: DecodeState, rows: RowSet, context: WindowContext
    ) -> Int[Array, " B"]:
        finished = state.blocks(context.block_length) < state.block[:, None]
        final = (state.status == PROMPT) | (state.status == STABLE)
        final |= (state.status == VISIBLE) & finished
        waits = rows.includes(state.positions) & ~final
        first = jnp.argmax(waits, axis=1).astype(rows.stop.dtype)
        return jnp.where(waits.any(axis=1), first, rows.stop)

    def max_visible(self, length: int, context: WindowContext) -> int:
        """Counts a window that grew, with all of its tokens accepted and still to be fed, and the
        rest of its last block."""
        block = context.block_length
        unshifted = replace(context, shift=0)
        return (self.growth(unshifted).budget if self.lookahead_trigger else block) + block

    def sizes(self, layout: CanvasLayout, context: WindowContext) -> tuple[int, ...]:
        growth, block = self.growth(context), context.block_length
        prefill = layout.prompt_length + block if layout.prompt_length else layout.length
        largest = min(max(prefill, self.max_visible(layout.length, context)), layout.length)
        spans = sorted({rows - context.shift for rows in (*growth.buckets, growth.budget)})
        return (*(size for size in spans if size < largest), largest)

    def attention_order(
        self, state: DecodeState, positions: Int[Array, "B R"], context: WindowContext
    ) -> Int[Array, "B R"] | None:
        """Gives drafts the order of the current block, since they take part in its denoising."""
        order = super().attention_order(state, positions, context)
        assert order is not None
        return jnp.minimum(order, state.block[:, None])


def _extra_rows(
    state: DecodeState, stop: Int[Array, " B"], context: WindowContext
) -> Int[Array, " B"]:
    """Returns how many rows are outside the window, however much it grows: in later blocks nothing
    is visible.

    Tokens that a worker refreshes also take room, so that the window, and thus the tokens, do not
    depend on how they are refreshed.
    """
    inside = context.rescorable & state.in_span(state.n_cached, stop)
    left = context.rescorable & (state.positions < state.n_cached[:, None])
    refreshed = jnp.minimum(left.sum(axis=1, dtype=stop.dtype), context.refresh_rows)
    if not context.shadows:
        return refreshed
    return inside.sum(axis=1, dtype=stop.dtype) + 2 * refreshed
