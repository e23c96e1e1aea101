"""The windows of single blocks: LLaDA's whole canvas, Fast-dLLM's caches, llada.cpp's, WeDLM's.

LLaDA (arXiv 2502.09992) runs every position in every step. Fast-dLLM (arXiv 2505.22618, §3.2) runs
the whole canvas once a block, and then only the block, or the block and what follows it, against
cached keys and values of the rest, which are approximate. llada.cpp (arXiv 2606.13740) and WeDLM
(arXiv 2512.22737) cache finished tokens only, and see no masks after the block.
"""

import jax.numpy as jnp
from jaxtyping import Array, Int

from llada_jax.sampler.state import DecodeState
from llada_jax.sampler.windows.window import (
    CanvasLayout,
    RowSet,
    Span,
    Window,
    WindowContext,
    doubling,
    window,
)


@window(name="by_cache", cache="none")
class WholeCanvas(Window):
    """Runs every position in every forward. Caches nothing."""

    caches = False
    runs_later_blocks = True

    def positions(self, state: DecodeState, context: WindowContext) -> Span:
        return Span(jnp.zeros_like(state.end), state.end)

    def sizes(self, layout: CanvasLayout, context: WindowContext) -> tuple[int, ...]:
        return (layout.length,)


@window(name="by_cache", cache="prefix")
class PrefixCache(Window):
    """Runs the whole canvas once a block, then the block and all that follows it."""

    runs_later_blocks = True

    def positions(self, state: DecodeState, context: WindowContext) -> Span:
        start = state.block_start(context.block_length)
        return Span(jnp.where(state.block_step == 0, 0, start), state.end)


@window(name="by_cache", cache="dual")
class DualCache(Window):
    """Runs the whole canvas once a block, then the block alone."""

    def positions(self, state: DecodeState, context: WindowContext) -> Span:
        first = state.block_step == 0
        start = jnp.where(first, 0, state.block_start(context.block_length))
        return Span(start, jnp.where(first, state.end, state.block_stop(context.block_length)))

    def sizes(self, layout: CanvasLayout, context: WindowContext) -> tuple[int, ...]:
        return (context.block_length, layout.length)


@window(name="by_cache", cache="blockwise")
class Blockwise(Window):
    """Runs everything that is not cached yet, up to the end of the block.

    That is the block; at its first step, also the block before, because its final tokens have not
    been fed yet; and at the very first step, the prompt.
    """

    caches_finished = True

    def positions(self, state: DecodeState, context: WindowContext) -> Span:
        return Span(state.n_cached, state.block_stop(context.block_length))

    def cached_after(
        self, state: DecodeState, rows: RowSet, context: WindowContext
    ) -> Int[Array, " B"]:
        return state.block_start(context.block_length)

    def max_visible(self, length: int, context: WindowContext) -> int:
        return 2 * context.block_length

    def sizes(self, layout: CanvasLayout, context: WindowContext) -> tuple[int, ...]:
        block = context.block_length
        if not layout.prompt_length:  # infilling: spans grow over blocks that had no holes
            return doubling(block, layout.length)
        prefill = min(layout.prompt_length + block, layout.length)
        return tuple(sorted({block, 2 * block, prefill}))


@window(name="sliding", cache="blockwise")
class Sliding(Blockwise):
    """Runs a block that moves to the first mask after each step, and the tokens before it that are
    not cached yet."""

    slides = True

    def after_step(self, state: DecodeState, context: WindowContext) -> DecodeState:
        masked = state.masked & ~state.done[:, None]
        first = jnp.argmax(masked, axis=1).astype(jnp.int32)
        origin = first - state.block * context.block_length
        origin = jnp.where(masked.any(axis=1), origin, state.origin)
        moved = origin != state.origin
        return state._replace(origin=origin, block_step=jnp.where(moved, 0, state.block_step))
