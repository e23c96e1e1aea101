"""Fast-dLLM's dual cache (arXiv 2505.22618, §3.2): of what stands before and after the block."""

import jax.numpy as jnp

from llada_jax.config import SamplerConfig
from llada_jax.sampler.canvas import Canvas, CanvasLayout
from llada_jax.sampler.windows.window import Span, Window


class DualCache(Window, window="by_cache", cache="dual"):
    """Runs the whole canvas once a block, then the block alone."""

    def span(self, canvas: Canvas, config: SamplerConfig, shift: int) -> Span:
        first = canvas.block_step == 0
        start = jnp.where(first, 0, canvas.block_start(config.block_length))
        return Span(start, jnp.where(first, canvas.end, canvas.block_stop(config.block_length)))

    def sizes(self, layout: CanvasLayout, config: SamplerConfig, shift: int) -> tuple[int, ...]:
        return (config.block_length, layout.length)
