"""WeDLM's window (arXiv 2512.22737): a block that starts at the first mask, wherever that is."""

import jax.numpy as jnp

from llada_jax.sampler.state import DecodeState
from llada_jax.sampler.windows.blockwise import Blockwise
from llada_jax.sampler.windows.window import WindowContext, window


@window(name="sliding", cache="blockwise")
class Sliding(Blockwise):
    """Runs a block that starts anew at the first mask after each step, and the tokens before it
    that are not cached yet."""

    slides = True

    def after_step(self, state: DecodeState, context: WindowContext) -> DecodeState:
        masked = state.masked & ~state.done[:, None]
        first = jnp.argmax(masked, axis=1).astype(jnp.int32)
        origin = first - state.block * context.block_length
        origin = jnp.where(masked.any(axis=1), origin, state.origin)
        moved = origin != state.origin
        return state._replace(origin=origin, block_step=jnp.where(moved, 0, state.block_step))
