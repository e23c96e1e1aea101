"""WeDLM's window (arXiv 2512.22737): so many positions from the first mask, wherever that is."""

import jax.numpy as jnp

from llada_jax.config import SamplerConfig, require
from llada_jax.sampler.canvas import Canvas
from llada_jax.sampler.windows.blockwise import Blockwise


class Sliding(Blockwise, window="sliding", cache="blockwise"):
    """Runs a block that begins anew at the first mask after each step, and the tokens before it
    that have not settled, which do so by that."""

    slides = True

    def check(self, config: SamplerConfig) -> None:
        require(
            config.rule.forces_progress and not config.rule.revises,
            f"window is 'sliding' and accept is {config.accept!r}; allowed: rules that commit a "
            "token in each step, and never change one",
        )

    def moved(self, canvas: Canvas, config: SamplerConfig) -> Canvas:
        masked = canvas.masked & ~canvas.done[:, None]
        first = jnp.argmax(masked, axis=1).astype(jnp.int32)
        origin = first - canvas.block * config.block_length
        origin = jnp.where(masked.any(axis=1), origin, canvas.origin)
        fresh = origin != canvas.origin
        return canvas._replace(origin=origin, block_step=jnp.where(fresh, 0, canvas.block_step))
