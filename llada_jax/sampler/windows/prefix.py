"""Fast-dLLM's prefix cache (arXiv 2505.22618, §3.2): of what comes before the block."""

import jax.numpy as jnp

from llada_jax.sampler.state import DecodeState
from llada_jax.sampler.windows.window import Span, Window, WindowContext, window


@window(name="by_cache", cache="prefix")
class PrefixCache(Window):
    """Runs the whole canvas once a block, then the block and all that follows it."""

    runs_later_blocks = True

    def positions(self, state: DecodeState, context: WindowContext) -> Span:
        start = state.block_start(context.block_length)
        return Span(jnp.where(state.block_step == 0, 0, start), state.end)
