"""llada.cpp's prefix KV cache (arXiv 2606.13740): the block, and what is to be fed before it."""

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


@window(name="by_cache", cache="blockwise")
class Blockwise(Window):
    """Runs all that is not cached yet, up to the end of the block.

    Within a block that is the block; at its first step, also the block before, whose final tokens
    have not been fed yet; at the very first step, the prompt. No masked suffix exists.
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
