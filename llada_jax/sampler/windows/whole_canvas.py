"""The window of LLaDA's own sampler (arXiv 2502.09992): everything, in every step."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from llada_jax.config import SamplerConfig
from llada_jax.sampler.canvas import Canvas, CanvasLayout
from llada_jax.sampler.windows.window import Span, Window


class WholeCanvas(Window, window="by_cache", cache="none"):
    """Runs every position, every time. Caches nothing."""

    caches = False

    def span(self, canvas: Canvas, config: SamplerConfig, shift: int) -> Span:
        return Span(jnp.zeros_like(canvas.end), canvas.end)

    def settled(self, canvas: Canvas, config: SamplerConfig, span: Span) -> Int[Array, " B"]:
        return canvas.settled

    def sizes(self, layout: CanvasLayout, config: SamplerConfig, shift: int) -> tuple[int, ...]:
        return (layout.length,)

    def most_rows(self, config: SamplerConfig, length: int) -> int:
        return length
