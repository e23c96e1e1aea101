"""Fast-dLLM's dual cache (arXiv 2505.22618, §3.2): of what comes before and after the block."""

import jax.numpy as jnp

from llada_jax.sampler.state import DecodeState
from llada_jax.sampler.windows.window import CanvasLayout, Span, Window, WindowContext, window


@window(name="by_cache", cache="dual")
class DualCache(Window):
    """Runs the whole canvas once a block, then the block alone."""

    def positions(self, state: DecodeState, context: WindowContext) -> Span:
        first = state.block_step == 0
        start = jnp.where(first, 0, state.block_start(context.block_length))
        return Span(start, jnp.where(first, state.end, state.block_stop(context.block_length)))

    def sizes(self, layout: CanvasLayout, context: WindowContext) -> tuple[int, ...]:
        return (context.block_length, layout.length)
