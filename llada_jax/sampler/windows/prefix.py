"""Fast-dLLM's prefix cache (arXiv 2505.22618, §3.2): of what stands before the block."""

import jax.numpy as jnp

from llada_jax.config import SamplerConfig
from llada_jax.sampler.canvas import Canvas, CanvasLayout
from llada_jax.sampler.windows.window import Span, Window, doubling


class PrefixCache(Window, window="by_cache", cache="prefix"):
    """Runs the whole canvas once a block, then the block and all that follows it."""

    def span(self, canvas: Canvas, config: SamplerConfig, shift: int) -> Span:
        start = canvas.block_start(config.block_length)
        return Span(jnp.where(canvas.block_step == 0, 0, start), canvas.end)

    def sizes(self, layout: CanvasLayout, config: SamplerConfig, shift: int) -> tuple[int, ...]:
        return doubling(config.block_length, layout.length)
