"""Fast-dLLM's dual cache: what stands before and after the block is read from the cache."""

import jax.numpy as jnp

from llada_jax.config import SamplerConfig
from llada_jax.config.policies import flat_choice
from llada_jax.sampler.canvas import Canvas, CanvasLayout, block_start
from llada_jax.sampler.policy import policy
from llada_jax.sampler.windows.window import Span, Window, block_stop


@policy
class DualCache(Window):
    """Runs the whole canvas once a block, then the block alone."""

    chosen_by = flat_choice("window", cache="dual")
    source = "Fast-dLLM §3.2, arXiv 2505.22618"

    def span(self, canvas: Canvas, config: SamplerConfig, shift: int) -> Span:
        first = canvas.block_step == 0
        start = jnp.where(first, 0, block_start(canvas, config.block_length))
        return Span(start, jnp.where(first, canvas.end, block_stop(canvas, config)))

    def sizes(self, layout: CanvasLayout, config: SamplerConfig, shift: int) -> tuple[int, ...]:
        return (config.block_length, layout.length)
