"""llada.cpp's window over several blocks (arXiv 2606.13740, §3.2): it slides and grows."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from llada_jax.config import SamplerConfig, require, require_numbers
from llada_jax.sampler.canvas import PROMPT, STABLE, VISIBLE, Canvas, CanvasLayout
from llada_jax.sampler.windows.window import Span, Window

LARGEST_GROWTH = 8
"""Blocks that a window without a latency table may grow to."""
ALLOWANCE = 2.0
"""A forward of a grown window may take so many times what it would have taken, by its table."""


class Growth(NamedTuple):
    """How far a window grows."""

    buckets: tuple[int, ...]  # numbers of rows, ascending
    grown: tuple[int, ...]  # what rows that fill each bucket grow to
    budget: int  # the most rows that a window grows to


class MultiBlock(Window, window="multi_block", cache="blockwise"):
    """Slides with the committed tokens and reaches into later blocks, whose predictions are drafts.

    It keeps its size, `block_length` positions from the first one that is not settled, also while
    tokens of the block before are still to be fed. Only where that would leave out tokens of the
    current block (drafts that it took over), or masks that the step has to commit, it reaches to
    the end of that block. A position settles in the forward that feeds its final token; what is
    still visible when its block is finished is not waited for. Where few masks are left in the
    block, the window grows until one more row would cross a bucket (but for the one that its rows
    fill already), the rows beside it included.

    Attributes:
      lookahead_trigger: Masks left in the current block at which the window grows into later
        blocks; 0 for never. It grows to the next bucket of `latency_table` where that takes at most
        twice the time; without a table buckets are doublings of `block_length`.
      row_budget: Most rows of a forward whose window has grown, those beside it included: what the
        memory of activations allows (`ForwardTimer.row_budget` says it of a phone).
      draft_threshold: Drafts of this confidence are accepted when their block becomes current;
        None: those that the accept rule takes, without the progress that it forces.
    """

    leaves_tokens = True
    drafts = True

    lookahead_trigger: int = 4
    row_budget: int | None = None
    draft_threshold: float | None = None

    def __post_init__(self) -> None:
        if self.draft_threshold is not None:
            require_numbers(self, "draft_threshold", above=0, most=1)

    def check(self, config: SamplerConfig) -> None:
        budget, table, block = self.row_budget, config.latency_table, config.block_length
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
        reason = config.rule.no_drafts
        require(
            not reason or self.draft_threshold is not None,
            f"window is 'multi_block' and accept is {config.accept!r}, which {reason}; allowed: "
            "with draft_threshold, or another rule",
        )

    def span(self, canvas: Canvas, config: SamplerConfig, shift: int) -> Span:
        stop = self._stop(canvas, config)
        rows = stop - jnp.maximum(canvas.settled - shift, 0)
        rows += _rows_beside(canvas, stop, config)
        left = canvas.masks_left(config.block_length)
        late = (left > 0) & (left <= self.lookahead_trigger)
        growth = jnp.where(late, self._growth(rows, config, shift), 0)
        return Span(canvas.settled, jnp.minimum(stop + growth, canvas.end))

    def _stop(self, canvas: Canvas, config: SamplerConfig) -> Int[Array, " B"]:
        """Returns where the window ends before it grows: it holds the current block's last token,
        and the masks that a step has to commit."""
        start, due = canvas.block_start(config.block_length), config.rule.most_due(config)
        slid = jnp.maximum(canvas.settled, canvas.origin) + config.block_length
        in_block = canvas.in_span(start, canvas.block_stop(config.block_length))
        masked = in_block & canvas.masked
        held = in_block & (~masked | (jnp.cumsum(masked, axis=1) <= due))
        least = jnp.where(held, canvas.positions + 1, 0).max(axis=1)
        stop = jnp.where(slid >= least, slid, start + config.block_length)
        return jnp.minimum(stop, canvas.end)

    def _growth(
        self, rows: Int[Array, " B"], config: SamplerConfig, shift: int
    ) -> Int[Array, " B"]:
        """Returns how many positions are added to a forward of so many rows."""
        growth = self.growth(config, shift)
        buckets = jnp.asarray((*growth.buckets, 0), rows.dtype)  # 0: no bucket holds them
        grown = jnp.asarray((*growth.grown, 0), rows.dtype)
        bucket = jnp.searchsorted(buckets[:-1], rows)
        reached = jnp.where(rows == buckets[bucket], grown[bucket], buckets[bucket])
        return jnp.maximum(jnp.minimum(reached, growth.budget) - rows, 0)

    def growth(self, config: SamplerConfig, shift: int) -> Growth:
        """Returns the buckets that the window grows to, and how far."""
        block, table = config.block_length, config.latency_table
        doublings = (block << i for i in range(1, LARGEST_GROWTH.bit_length()))
        buckets = table.rows if table else tuple(sorted({block + shift, *doublings}))
        larger = (*buckets[1:], buckets[-1])
        if table is not None:
            ms = dict(zip(table.rows, table.ms, strict=True))
            larger = tuple(
                more if ms[more] <= ALLOWANCE * ms[rows] else rows
                for rows, more in zip(buckets, larger, strict=True)
            )
        return Growth(buckets, larger, min(buckets[-1], self.row_budget or buckets[-1]))

    def settled(self, canvas: Canvas, config: SamplerConfig, span: Span) -> Int[Array, " B"]:
        finished = canvas.blocks(config.block_length) < canvas.block[:, None]
        final = (canvas.state == PROMPT) | (canvas.state == STABLE)
        final |= (canvas.state == VISIBLE) & finished
        waits = canvas.in_span(*span) & ~final
        first = jnp.argmax(waits, axis=1).astype(span.stop.dtype)
        return jnp.where(waits.any(axis=1), first, span.stop)

    def most_rows(self, config: SamplerConfig, length: int) -> int:
        """Counts, after the first forward, a window that grew and was accepted whole, whose tokens
        are all to be fed, and the rest of its last block."""
        block = config.block_length
        budget = self.growth(config, shift=0).budget
        return (budget if self.lookahead_trigger else block) + block

    def sizes(self, layout: CanvasLayout, config: SamplerConfig, shift: int) -> tuple[int, ...]:
        growth, block = self.growth(config, shift), config.block_length
        prefill = layout.prompt_length + block if layout.prompt_length else layout.length
        largest = min(max(prefill, self.most_rows(config, layout.length)), layout.length)
        spans = sorted({rows - shift for rows in (*growth.buckets, growth.budget)})
        return (*(size for size in spans if size < largest), largest)

    def attention_order(
        self, canvas: Canvas, positions: Int[Array, "B R"], config: SamplerConfig
    ) -> Int[Array, "B R"] | None:
        """Drafts are in the current block's order, since they take part in its denoising."""
        order = super().attention_order(canvas, positions, config)
        assert order is not None
        return jnp.minimum(order, canvas.block[:, None])


def _rows_beside(canvas: Canvas, stop: Int[Array, " B"], config: SamplerConfig) -> Int[Array, " B"]:
    """Returns how many rows stand beside the window, however much it grows: in later blocks,
    nothing is visible.

    Refreshed tokens take room where a worker refreshes them, too: where that happens changes no
    window, so it changes no token.
    """
    rule = config.rule
    measured = rule.measures(canvas, config)
    inside = measured & canvas.in_span(canvas.settled, stop)
    left = measured & (canvas.positions < canvas.settled[:, None])
    most = rule.refresh_rows if config.refreshes else 0
    refreshed = jnp.minimum(left.sum(axis=1, dtype=stop.dtype), most)
    if not (rule.revises and rule.rescore == "shadow"):
        return refreshed
    return inside.sum(axis=1, dtype=stop.dtype) + 2 * refreshed
