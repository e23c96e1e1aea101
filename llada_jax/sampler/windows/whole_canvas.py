"""The window of LLaDA's own sampler (arXiv 2502.09992): everything, in every step."""

import jax.numpy as jnp

from llada_jax.sampler.state import DecodeState
from llada_jax.sampler.windows.window import CanvasLayout, Span, Window, WindowContext, window


@window(name="by_cache", cache="none")
class WholeCanvas(Window):
    """Runs every position in every forward. Caches nothing."""

    caches = False
    runs_later_blocks = True

    def positions(self, state: DecodeState, context: WindowContext) -> Span:
        return Span(jnp.zeros_like(state.end), state.end)

    def sizes(self, layout: CanvasLayout, context: WindowContext) -> tuple[int, ...]:
        return (layout.length,)
