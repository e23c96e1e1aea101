"""Windows: which rows the next forward runs, and which keys and values it may take from the cache.

A window is one span of positions per batch row. Spans of different length share one compiled
forward: rows beyond a span are padding, and the number of rows is rounded up to a bucket.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import jax.numpy as jnp
from jaxtyping import Array, Int

from llada_jax.config import ModelConfig, SamplerConfig
from llada_jax.sampler.canvas import Canvas, Layout, block_start


class Span(NamedTuple):
    """Positions from `start` up to, not including, `stop`."""

    start: Int[Array, " B"]
    stop: Int[Array, " B"]


class Window(Protocol):
    """A window policy."""

    block_length: int

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


def window_for(config: SamplerConfig) -> Window:
    """The window policy that `config.cache` names."""
    return _WINDOWS[config.cache](config.block_length)


def buckets_for(window: Window, layout: Layout, model: ModelConfig) -> tuple[int, ...]:
    """Row counts of the forwards that the window needs, ascending.

    One more row where outputs are shifted: a block's first token is predicted one position earlier.
    """
    extra = int(model.shift_logits)
    sizes = {min(size + extra, layout.length) for size in window.sizes(layout)}
    return tuple(sorted(sizes))


def attention_order(
    canvas: Canvas, positions: Int[Array, "B R"], config: SamplerConfig, model: ModelConfig
) -> Int[Array, "B R"] | None:
    """Order between positions where attention is causal between blocks; None where all see all.

    It is in the block-causal families, and where finished blocks are cached without what follows
    them: there the prompt comes before all blocks.
    """
    if model.block_length is not None:
        return positions // config.block_length
    if config.cache == "blockwise":
        block = (positions - canvas.origin[:, None]) // config.block_length
        return jnp.maximum(block, -1)
    return None
