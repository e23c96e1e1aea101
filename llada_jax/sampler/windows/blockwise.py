"""llada.cpp's prefix KV cache (arXiv 2606.13740): the block, and what is to be fed before it."""

from jaxtyping import Array, Int

from llada_jax.config import SamplerConfig
from llada_jax.sampler.canvas import Canvas, CanvasLayout
from llada_jax.sampler.windows.window import Span, Window, doubling


class Blockwise(Window, window="by_cache", cache="blockwise"):
    """Runs all that is not settled, up to the end of the block.

    Within a block that is the block; at its first step, also the block before, whose final tokens
    have not been fed yet; at the very first step, the prompt. No masked suffix exists.
    """

    leaves_tokens = True

    def span(self, canvas: Canvas, config: SamplerConfig, shift: int) -> Span:
        return Span(canvas.settled, canvas.block_stop(config.block_length))

    def settled(self, canvas: Canvas, config: SamplerConfig, span: Span) -> Int[Array, " B"]:
        return canvas.block_start(config.block_length)

    def sizes(self, layout: CanvasLayout, config: SamplerConfig, shift: int) -> tuple[int, ...]:
        block = config.block_length
        if not layout.prompt_length:  # infilling: spans grow over blocks that had no holes
            return doubling(block, layout.length)
        prefill = min(layout.prompt_length + block, layout.length)
        return tuple(sorted({block, 2 * block, prefill}))
