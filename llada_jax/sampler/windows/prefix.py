"""Fast-dLLM's prefix cache: what stands before the block is read from the cache."""

import jax.numpy as jnp

from llada_jax.config import SamplerConfig
from llada_jax.config.policies import flat_choice
from llada_jax.sampler.canvas import Canvas, CanvasLayout, block_start
from llada_jax.sampler.policy import policy
from llada_jax.sampler.windows.window import Span, Window, doubling


@policy
class PrefixCache(Window):
    """Runs the whole canvas once a block, then the block and all that follows it."""

    chosen_by = flat_choice("window", cache="prefix")
    source = "Fast-dLLM §3.2, arXiv 2505.22618"

    def span(self, canvas: Canvas, config: SamplerConfig, shift: int) -> Span:
        start = block_start(canvas, config.block_length)
        return Span(jnp.where(canvas.block_step == 0, 0, start), canvas.end)

    def sizes(self, layout: CanvasLayout, config: SamplerConfig, shift: int) -> tuple[int, ...]:
        return doubling(config.block_length, layout.length)
