"""After a decision: a row goes on to its next block that has masks, or is done: its canvas is full,
its answer has ended before that, or the model gave a score that is no number."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from llada_jax.sampler.canvas import STABLE, VISIBLE, Canvas
from llada_jax.sampler.setup import Setup


def advance(
    setup: Setup, canvas: Canvas, where: Bool[Array, " B"], edited: Bool[Array, " B"] | None
) -> Canvas:
    """Returns the canvas whose rows have the next block, or are done, where theirs is over.

    Args:
      where: rows that took part in the decision.
      edited: rows that had a committed token changed; None where no forward is decided.
    """
    config, rule, counts = setup.config, setup.rule, edited is not None
    edited = jnp.zeros_like(where) if edited is None else edited
    blocks = canvas.blocks(config.block_length)
    beyond = canvas.masked & (blocks > canvas.block[:, None])
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
    block_masks = (canvas.masked & (blocks == block[:, None])).sum(axis=1, dtype=jnp.int32)
    frozen = rule.frozen(blocks < block[:, None], done)
    if frozen is not None:
        canvas = canvas.stable(frozen & (canvas.state == VISIBLE))
    return canvas._replace(
        block=block,
        block_step=jnp.where(moved, 0, jnp.where(where, block_step, canvas.block_step)),
        block_masks=jnp.where(moved if counts else where, block_masks, canvas.block_masks),
        steady_steps=jnp.where(moved, 0, jnp.where(where, steady, canvas.steady_steps)),
        accepted=jnp.where(moved, 0, canvas.accepted),
        done=canvas.done | done,
    )


def stop_rows(setup: Setup, canvas: Canvas) -> Canvas:
    """Returns the canvas whose rows are done once an EOS, or another id that the model stops at,
    has no mask before it, if `eos_early_stop` says so; what is masked behind it becomes EOS
    (LLaDA2), and what is visible there stable.

    Where tokens before it are still visible, a row first has the steps that may follow a last mask.
    """
    config = setup.config
    if not config.eos_early_stop:
        return canvas
    masked, position = canvas.masked, canvas.positions
    length = canvas.tokens.shape[1]
    first_mask = jnp.where(masked, position, length).min(axis=1)
    ended = (canvas.state >= STABLE) & ends_of(setup, canvas)
    first_eos = jnp.where(ended, position, length).min(axis=1)
    stopped = first_eos < first_mask
    over = (canvas.state == VISIBLE) & (position > first_eos[:, None]) & stopped[:, None]
    canvas = canvas.ended(masked & stopped[:, None], config.eos_id).stable(over)
    done = stopped & setup.rule.may_end(canvas, canvas.steady_steps)
    return canvas._replace(done=canvas.done | done)


def ends_of(setup: Setup, canvas: Canvas) -> Bool[Array, "B L"]:
    """Returns the tokens at which a row stops, if `eos_early_stop` says so."""
    if not setup.config.eos_early_stop:
        return jnp.zeros(canvas.tokens.shape, bool)
    assert setup.config.eos_id is not None
    ids = jnp.array([setup.config.eos_id, *setup.model.stop_ids], jnp.int32)
    return jnp.isin(canvas.tokens, ids)


def stop_faulty(canvas: Canvas, faults: Bool[Array, "B L"]) -> Canvas:
    """Returns the canvas whose rows with faults are done, and know where their first one is."""
    found = faults.any(axis=1)
    first = jnp.argmax(faults, axis=1).astype(jnp.int32)
    return canvas._replace(done=canvas.done | found, fault=jnp.where(found, first, canvas.fault))


class Fault(NamedTuple):
    """Where a canvas has stopped at a score that is no finite number; counted from 0."""

    canvas: int
    forward: int
    position: int


def faults_of(canvas: Canvas) -> list[Fault]:
    """Returns the faults of a canvas's rows."""
    fault, nfe = np.asarray(canvas.fault), np.asarray(canvas.nfe)
    return [Fault(*map(int, (row, nfe[row] - 1, fault[row]))) for row in np.flatnonzero(fault >= 0)]


def require_scores(faults: Sequence[Fault]) -> None:
    """Raises FloatingPointError where there are faults: it names each of them."""
    told = [f"canvas {row}: forward {step}, position {at}" for row, step, at in faults]
    if told:
        raise FloatingPointError(
            f"the model's scores are NaN or infinite ({'; '.join(told)}; all counted from 0); "
            "nothing was decoded"
        )
