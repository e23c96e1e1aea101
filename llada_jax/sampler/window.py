"""Windows: which rows the next forward runs, and which keys and values it may take from the cache.

A window is one span of positions per batch row. Spans of different length share one compiled
forward: rows beyond a span are padding, and the number of rows is rounded up to a bucket.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax.numpy as jnp
from jaxtyping import Array, Int

from llada_jax.config import LatencyTable, ModelConfig, SamplerConfig
from llada_jax.sampler.canvas import (
    MASKED,
    PROMPT,
    STABLE,
    VISIBLE,
    Canvas,
    Layout,
    block_of,
    block_start,
    in_span,
    positions_of,
)


class Span(NamedTuple):
    """Positions from `start` up to, not including, `stop`."""

    start: Int[Array, " B"]
    stop: Int[Array, " B"]


class Window(Protocol):
    """A window policy."""

    @property
    def block_length(self) -> int: ...

    def span(self, canvas: Canvas) -> Span:
        """The positions that the next forward must run."""
        ...

    def settled(self, canvas: Canvas) -> Int[Array, " B"]:
        """After that forward, the positions before this one may be read from the cache."""
        ...

    def cache_length(self, layout: Layout) -> int:
        """Positions that the cache must hold; 0 where nothing is cached."""
        ...

    def sizes(self, layout: Layout) -> tuple[int, ...]:
        """Lengths that spans round up to, ascending; the last one holds every span."""
        ...


@dataclass(frozen=True)
class WholeCanvas:
    """Every position, every time: LLaDA's sampler. Caches nothing."""

    block_length: int

    def span(self, canvas: Canvas) -> Span:
        return Span(jnp.zeros_like(canvas.end), canvas.end)

    def settled(self, canvas: Canvas) -> Int[Array, " B"]:
        return canvas.settled

    def cache_length(self, layout: Layout) -> int:
        return 0

    def sizes(self, layout: Layout) -> tuple[int, ...]:
        return (layout.length,)


@dataclass(frozen=True)
class PrefixCache:
    """The whole canvas once a block, then the block and all that follows it (Fast-dLLM §3.2)."""

    block_length: int

    def span(self, canvas: Canvas) -> Span:
        start = jnp.where(canvas.block_step == 0, 0, block_start(canvas, self.block_length))
        return Span(start, canvas.end)

    def settled(self, canvas: Canvas) -> Int[Array, " B"]:
        return canvas.end

    def cache_length(self, layout: Layout) -> int:
        return layout.length

    def sizes(self, layout: Layout) -> tuple[int, ...]:
        return _doubling(self.block_length, layout.length)


@dataclass(frozen=True)
class DualCache:
    """The whole canvas once a block, then the block alone (Fast-dLLM §3.2)."""

    block_length: int

    def span(self, canvas: Canvas) -> Span:
        start = block_start(canvas, self.block_length)
        refresh = canvas.block_step == 0
        stop = jnp.minimum(start + self.block_length, canvas.end)
        return Span(jnp.where(refresh, 0, start), jnp.where(refresh, canvas.end, stop))

    def settled(self, canvas: Canvas) -> Int[Array, " B"]:
        return canvas.end

    def cache_length(self, layout: Layout) -> int:
        return layout.length

    def sizes(self, layout: Layout) -> tuple[int, ...]:
        return (self.block_length, layout.length)


@dataclass(frozen=True)
class Blockwise:
    """All that is not settled, up to the end of the block: llada.cpp's prefix KV cache.

    Within a block that is the block; at its first step, also the block before, whose final tokens
    have not been fed yet; at the very first step, the prompt. No masked suffix exists.
    """

    block_length: int

    def span(self, canvas: Canvas) -> Span:
        stop = block_start(canvas, self.block_length) + self.block_length
        return Span(canvas.settled, jnp.minimum(stop, canvas.end))

    def settled(self, canvas: Canvas) -> Int[Array, " B"]:
        return block_start(canvas, self.block_length)

    def cache_length(self, layout: Layout) -> int:
        return layout.length

    def sizes(self, layout: Layout) -> tuple[int, ...]:
        if not layout.prompt_length:  # infilling: spans grow over blocks that had no holes
            return _doubling(self.block_length, layout.length)
        prefill = min(layout.prompt_length + self.block_length, layout.length)
        return tuple(sorted({self.block_length, 2 * self.block_length, prefill}))


@dataclass(frozen=True)
class MultiBlock:
    """A window that slides with the committed tokens, and reaches into later blocks (llada.cpp
    §3.2).

    It keeps its size, `block_length` positions from the first one that is not settled, also while
    tokens of the block before are still to be fed. Only where that would leave out tokens of the
    current block (drafts that it took over), or masks that the step has to commit, it reaches to
    the end of that block. A position settles in the forward that feeds its final token; what is
    still visible when its block is finished is not waited for. Where few masks are left in the
    block, the window grows until one more row would cross a bucket (but for the one that its rows
    fill already), the rows beside it included.

    Where it does not slide, a block settles as a whole, and until it grows the window ends with the
    current block: then it is that of `Blockwise`.
    """

    block_length: int
    slides: bool
    due: int
    """Most masks that a step has to commit."""
    trigger: int
    shift: int
    """Rows before the window, whose outputs predict its first token: 1 of a shifted model."""
    buckets: tuple[int, ...]
    grown: tuple[int, ...]
    """What rows that fill each bucket grow to."""
    budget: int
    """Most rows that a window grows to."""
    shadows: bool
    """Whether visible tokens take rows of their own."""
    refreshed: int
    """Most tokens before the window that are refreshed in one forward. They take room where a
    worker refreshes them, too: where that happens changes no window, so it changes no token."""

    def span(self, canvas: Canvas) -> Span:
        stop = self._stop(canvas)
        growth = jnp.where(self._late(canvas), self._growth(canvas, stop), 0)
        return Span(canvas.settled, jnp.minimum(stop + growth, canvas.end))

    def _stop(self, canvas: Canvas) -> Int[Array, " B"]:
        """Where the window ends before it grows."""
        whole = block_start(canvas, self.block_length) + self.block_length
        if not self.slides:
            return jnp.minimum(whole, canvas.end)
        slid = jnp.maximum(canvas.settled, canvas.origin) + self.block_length
        holds = slid >= self._least_stop(canvas)
        return jnp.minimum(jnp.where(holds, slid, whole), canvas.end)

    def _least_stop(self, canvas: Canvas) -> Int[Array, " B"]:
        """Past the current block's last token, and its first `due` masks."""
        start = block_start(canvas, self.block_length)
        stop = jnp.minimum(start + self.block_length, canvas.end)
        in_block = in_span(canvas, start, stop)
        masked = in_block & (canvas.state == MASKED)
        held = in_block & (~masked | (jnp.cumsum(masked, axis=1) <= self.due))
        return jnp.where(held, positions_of(canvas) + 1, 0).max(axis=1)

    def _late(self, canvas: Canvas) -> Int[Array, " B"]:
        start = block_start(canvas, self.block_length)
        in_block = in_span(canvas, start, start + self.block_length)
        left = (in_block & (canvas.state == MASKED)).sum(axis=1)
        return (left > 0) & (left <= self.trigger)

    def _growth(self, canvas: Canvas, stop: Int[Array, " B"]) -> Int[Array, " B"]:
        rows = stop - jnp.maximum(canvas.settled - self.shift, 0) + self._beside(canvas, stop)
        buckets = jnp.asarray((*self.buckets, 0), rows.dtype)  # 0: no bucket holds them
        grown = jnp.asarray((*self.grown, 0), rows.dtype)
        bucket = jnp.searchsorted(buckets[:-1], rows)
        reached = jnp.where(rows == buckets[bucket], grown[bucket], buckets[bucket])
        return jnp.maximum(jnp.minimum(reached, self.budget) - rows, 0)

    def _beside(self, canvas: Canvas, stop: Int[Array, " B"]) -> Int[Array, " B"]:
        """Rows that stand beside the window, however much it grows: in later blocks, nothing is
        visible."""
        visible = canvas.state == VISIBLE
        inside = visible & in_span(canvas, canvas.settled, stop)
        left = visible & (positions_of(canvas) < canvas.settled[:, None])
        refreshed = jnp.minimum(left.sum(axis=1, dtype=stop.dtype), self.refreshed)
        if not self.shadows:
            return refreshed
        return inside.sum(axis=1, dtype=stop.dtype) + 2 * refreshed

    def settled(self, canvas: Canvas) -> Int[Array, " B"]:
        start, stop = self.span(canvas)
        finished = (
            block_of(canvas, positions_of(canvas)[None], self.block_length)
            < (canvas.block[:, None])
        )
        final = (canvas.state == PROMPT) | (canvas.state == STABLE)
        final |= (canvas.state == VISIBLE) & finished
        waits = in_span(canvas, start, stop) & ~final
        first = jnp.argmax(waits, axis=1).astype(stop.dtype)
        settled = jnp.where(waits.any(axis=1), first, stop)
        if self.slides:
            return settled
        return jnp.minimum(settled, block_start(canvas, self.block_length))

    @property
    def most_rows(self) -> int:
        """After the first forward: a window that grew and was accepted whole, whose tokens are all
        to be fed, and the rest of its last block."""
        reached = self.budget if self.trigger else self.block_length
        return reached + self.block_length

    def cache_length(self, layout: Layout) -> int:
        return layout.length

    def sizes(self, layout: Layout) -> tuple[int, ...]:
        prefill = (
            layout.prompt_length + self.block_length if layout.prompt_length else layout.length
        )
        largest = min(max(prefill, self.most_rows), layout.length)
        spans = sorted({rows - self.shift for rows in (*self.buckets, self.budget)})
        return (*(size for size in spans if size < largest), largest)


LARGEST_GROWTH = 8
"""Blocks that a window without a latency table may grow to."""


def multi_block(config: SamplerConfig, shift: int = 0) -> Window:
    """The window of `multi_block`. Lossless, it is the block as a whole, which block-wise decoding
    sees in every step, and a branch does the rest."""
    if config.lossless:
        return Blockwise(config.block_length)
    block, table = config.block_length, config.latency_table
    doubling = (block << i for i in range(1, LARGEST_GROWTH.bit_length()))
    buckets = table.rows if table else tuple(sorted({block + shift, *doubling}))
    return MultiBlock(
        block_length=config.block_length,
        slides=config.slide,
        due=_most_due(config),
        shift=shift,
        trigger=config.lookahead_trigger,
        buckets=buckets,
        grown=_grown(buckets, table, config.latency_allowance),
        budget=min(buckets[-1], config.row_budget or buckets[-1]),
        shadows=config.revises and config.rescore == "shadow",
        refreshed=config.refresh_rows if config.refreshes else 0,
    )


def _most_due(config: SamplerConfig) -> int:
    """Most masks that a step commits, however unsure they are."""
    if "quota" in (config.accept, config.forced_progress):
        return -(-config.block_length // config.steps_per_block)
    return 1


def _grown(
    buckets: tuple[int, ...], table: LatencyTable | None, allowance: float
) -> tuple[int, ...]:
    """The next bucket of each, where that takes at most `allowance` times as long."""
    larger = (*buckets[1:], buckets[-1])
    if table is None:
        return larger
    ms = dict(zip(table.rows, table.ms, strict=True))
    return tuple(
        more if ms[more] <= allowance * ms[rows] else rows
        for rows, more in zip(buckets, larger, strict=True)
    )


def _doubling(smallest: int, largest: int) -> tuple[int, ...]:
    sizes = []
    while smallest < largest:
        sizes.append(smallest)
        smallest *= 2
    return (*sizes, largest)


_WINDOWS = {
    "none": WholeCanvas,
    "prefix": PrefixCache,
    "dual": DualCache,
    "blockwise": Blockwise,
}


def window_for(config: SamplerConfig, shift: int = 0) -> Window:
    """The window policy that `config.window` and `config.cache` name, for a model whose outputs
    stand `shift` positions before what they predict."""
    if config.window == "multi_block":
        return multi_block(config, shift)
    return _WINDOWS[config.cache](config.block_length)


def buckets_for(
    window: Window, layout: Layout, model: ModelConfig, beside: int = 0
) -> tuple[int, ...]:
    """Row counts of the forwards that the window needs, ascending.

    One more row where outputs are shifted: a block's first token is predicted one position earlier.
    `beside` is the most rows that stand beside the window.
    """
    extra = int(model.shift_logits)
    sizes = {min(size + extra, layout.length) for size in window.sizes(layout)}
    if beside:
        sizes |= set(_doubling(window.block_length, max(sizes) + beside))
    return tuple(sorted(sizes))


def attention_order(
    canvas: Canvas, positions: Int[Array, "B R"], config: SamplerConfig, model: ModelConfig
) -> Int[Array, "B R"] | None:
    """Order between positions where attention is causal between blocks; None where all see all.

    It is in the block-causal families, and where finished blocks are cached without what follows
    them: there the prompt comes before all blocks. Drafts are in the current block's order, since
    they take part in its denoising, unless that is to be lossless.
    """
    if model.block_length is not None:
        return positions // config.block_length
    if config.cache != "blockwise":
        return None
    block = jnp.maximum(block_of(canvas, positions, config.block_length), -1)
    if config.window == "multi_block" and not config.lossless:
        block = jnp.minimum(block, canvas.block[:, None])
    return block
