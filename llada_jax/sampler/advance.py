"""After a decision: count the step, go on to the next block that has masks, or end."""

from functools import partial
from typing import Protocol

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from llada_jax.config import SamplerConfig
from llada_jax.sampler.canvas import (
    MASKED,
    STABLE,
    VISIBLE,
    Canvas,
    block_of,
    block_start,
    in_span,
    positions_of,
)


class Advance(Protocol):
    """Rows `where` the current block is over get the next one, or are done.

    `edited` rows had a committed token changed in this step; `counts` is false where no forward
    belongs to the decision.
    """

    def __call__(
        self,
        canvas: Canvas,
        edited: Bool[Array, " B"],
        where: Bool[Array, " B"],
        *,
        counts: bool = True,
    ) -> Canvas: ...


def steps_per_block(config: SamplerConfig) -> int:
    """Forwards that one block may take: its schedule, or one a token."""
    if config.accept == "quota":
        return config.steps_per_block
    return config.block_length + (config.edit_steps if config.accept == "token_edit" else 0)


def most_steps(config: SamplerConfig, n_blocks: int) -> int:
    """Forwards that a canvas of so many blocks may take."""
    return n_blocks * steps_per_block(config) + end_steps(config)


def end_steps(config: SamplerConfig) -> int:
    """Forwards that may follow a canvas's last mask."""
    return config.end_steps if config.accept == "staged" else 0


def masks_left(canvas: Canvas, block_length: int) -> Int[Array, " B"]:
    """Masks of the current block."""
    start = block_start(canvas, block_length)
    inside = in_span(canvas, start, start + block_length)
    return (inside & (canvas.state == MASKED)).sum(axis=1, dtype=jnp.int32)


def advance(
    canvas: Canvas,
    edited: Bool[Array, " B"],
    where: Bool[Array, " B"],
    *,
    counts: bool = True,
    config: SamplerConfig,
) -> Canvas:
    """`Advance`, by the rules of `config`."""
    length = config.block_length
    masked = canvas.state == MASKED
    blocks = block_of(canvas, positions_of(canvas)[None], length)
    beyond = masked & (blocks > canvas.block[:, None])
    left = masks_left(canvas, length)
    block_step = canvas.block_step + int(counts)
    steady = jnp.where(left > 0, 0, canvas.steady_steps + 1)
    over = where & ((left == 0) & _quiet(steady, edited, config))
    if counts:
        over |= where & (block_step >= steps_per_block(config))
    ended = over & ~beyond.any(axis=1)
    done = ended & may_end(canvas, steady, config)
    moved = over & ~ended
    first = jnp.argmax(beyond, axis=1).astype(jnp.int32)
    block = jnp.where(moved, (first - canvas.origin) // length, canvas.block)
    block_masks = (masked & (blocks == block[:, None])).sum(axis=1, dtype=jnp.int32)
    restarts = moved if counts else where
    canvas = canvas._replace(
        block=block,
        block_step=jnp.where(moved, 0, jnp.where(where, block_step, canvas.block_step)),
        block_masks=jnp.where(restarts, block_masks, canvas.block_masks),
        steady_steps=jnp.where(moved, 0, jnp.where(where, steady, canvas.steady_steps)),
        accepted=jnp.where(moved, 0, canvas.accepted),
        done=canvas.done | done,
    )
    return _freeze(canvas, blocks, done, config)


def may_end(canvas: Canvas, steady: Int[Array, " B"], config: SamplerConfig) -> Bool[Array, " B"]:
    """Whether a row without masks is done, or still has visible tokens to revise."""
    if config.accept != "staged":
        return jnp.ones(steady.shape, bool)
    visible = (canvas.state == VISIBLE).any(axis=1)
    return ~visible | (steady > config.end_steps)


def _quiet(
    steady: Int[Array, " B"], edited: Bool[Array, " B"], config: SamplerConfig
) -> Bool[Array, " B"]:
    """Whether a block without masks is over: token editing waits for a step without edits."""
    if config.accept != "token_edit":
        return jnp.ones(steady.shape, bool)
    return ((steady > 1) & ~edited) | (steady > config.edit_steps)


def _freeze(
    canvas: Canvas, blocks: Int[Array, "B L"], done: Bool[Array, " B"], config: SamplerConfig
) -> Canvas:
    """Visible tokens of finished blocks stay as they are, unless they are refreshed."""
    if not config.revises or (config.accept == "staged" and config.refresh != "none"):
        return canvas
    finished = blocks < canvas.block[:, None]
    if config.accept != "staged":
        finished |= done[:, None]
    frozen = finished & (canvas.state == VISIBLE)
    return canvas._replace(state=jnp.where(frozen, jnp.int8(STABLE), canvas.state))


def advance_for(config: SamplerConfig) -> Advance:
    """The rules of `config`."""
    return partial(advance, config=config)
