"""After a decision: count the step, go on to the next block that has masks, or end."""

import jax.numpy as jnp
from jaxtyping import Array, Bool

from llada_jax.sampler.canvas import STABLE, VISIBLE, Canvas
from llada_jax.sampler.setup import Setup


def advance(
    setup: Setup,
    canvas: Canvas,
    edited: Bool[Array, " B"],
    where: Bool[Array, " B"],
    *,
    counts: bool = True,
) -> Canvas:
    """Returns the canvas whose rows have the next block, or are done, where theirs is over.

    Args:
      edited: rows that had a committed token changed in this step.
      where: rows that took part in the decision.
      counts: false where no forward belongs to the decision.
    """
    config, rule = setup.config, setup.rule
    masked = canvas.masked
    blocks = canvas.blocks(config.block_length)
    beyond = masked & (blocks > canvas.block[:, None])
    left = canvas.masks_left(config.block_length)
    block_step = canvas.block_step + int(counts)
    steady = jnp.where(left > 0, 0, canvas.steady_steps + 1)
    over = where & (left == 0) & rule.quiet(steady, edited)
    if counts:
        over |= where & (block_step >= rule.block_steps(config))
    ended = over & ~beyond.any(axis=1)
    done = ended & rule.may_end(canvas, steady)
    moved = over & ~ended
    first = jnp.argmax(beyond, axis=1).astype(jnp.int32)
    block = jnp.where(moved, (first - canvas.origin) // config.block_length, canvas.block)
    block_masks = (masked & (blocks == block[:, None])).sum(axis=1, dtype=jnp.int32)
    restarts = moved if counts else where
    frozen = rule.frozen(blocks < block[:, None], done)
    state = canvas.state
    if frozen is not None:
        state = jnp.where(frozen & (state == VISIBLE), jnp.int8(STABLE), state)
    return canvas._replace(
        state=state,
        block=block,
        block_step=jnp.where(moved, 0, jnp.where(where, block_step, canvas.block_step)),
        block_masks=jnp.where(restarts, block_masks, canvas.block_masks),
        steady_steps=jnp.where(moved, 0, jnp.where(where, steady, canvas.steady_steps)),
        accepted=jnp.where(moved, 0, canvas.accepted),
        done=canvas.done | done,
    )
