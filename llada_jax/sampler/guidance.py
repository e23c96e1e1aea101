"""Classifier-free guidance: every forward also runs a batch whose prompt is masked."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from llada_jax.sampler.canvas import PROMPT, Canvas, take
from llada_jax.sampler.setup import Setup
from llada_jax.types import Rows


def with_unconditional(setup: Setup, canvas: Canvas, rows: Rows) -> Rows:
    """Adds, for guidance, a second batch of the same rows whose prompt is masked."""
    if not setup.config.cfg_scale:
        return rows
    prompt = take(canvas.state, rows.positions) == PROMPT
    blank = rows._replace(tokens=jnp.where(prompt, jnp.int32(setup.mask_id), rows.tokens))
    return jax.tree.map(lambda *batches: jnp.concatenate(batches), rows, blank)


def guide(setup: Setup, hidden: Float[Array, "BB R D"]) -> Float[Array, "B R D"]:
    """Applies classifier-free guidance: `un + (scale + 1) * (cond - un)`.

    LLaDA guides logits. The head is linear, so guiding its input gives the same, for D numbers
    a row instead of V.
    """
    scale = setup.config.cfg_scale
    if not scale:
        return hidden
    conditional, unconditional = jnp.split(hidden.astype(jnp.float32), 2)
    guided = unconditional + (scale + 1) * (conditional - unconditional)
    return guided.astype(hidden.dtype)
