"""After a decision: sequences move to their next unfinished block, or are done.

A sequence is done when its canvas is full, when its answer has ended before that, or when the model
returned a score that is not finite.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from llada_jax.sampler.spec import StepSpec
from llada_jax.sampler.state import STABLE, VISIBLE, DecodeState


def advance(
    spec: StepSpec, state: DecodeState, active: Bool[Array, " B"], edited: Bool[Array, " B"] | None
) -> DecodeState:
    """Moves each active sequence whose block is finished to its next block with masks, or marks it
    done.

    Args:
      active: Sequences that took part in the decision.
      edited: Sequences in which a committed token changed, or None if no forward was decided.
    """
    config, rule, after_forward = spec.config, spec.rule, edited is not None
    edited = jnp.zeros_like(active) if edited is None else edited
    blocks = state.blocks(config.block_length)
    later = state.masked & (blocks > state.block[:, None])
    left = state.masks_left(config.block_length)
    block_step = state.block_step + int(after_forward)
    unmasked = jnp.where(left > 0, 0, state.unmasked_steps + 1)
    # Token editing goes on while a forward changes something, for at most `edit_steps`.
    settled = (unmasked > rule.edit_steps) | ((unmasked > 1) & ~edited)
    over = active & (left == 0) & settled
    if after_forward:
        over |= active & (block_step >= spec.max_block_steps)
    ended = over & ~later.any(axis=1)
    done = ended & _may_end(spec, state, unmasked)
    moved = over & ~ended
    first = jnp.argmax(later, axis=1).astype(jnp.int32)
    block = jnp.where(moved, (first - state.origin) // config.block_length, state.block)
    block_masks = (state.masked & (blocks == block[:, None])).sum(axis=1, dtype=jnp.int32)
    if rule.revises and not (rule.refreshes or rule.verifies):
        frozen = blocks < block[:, None]
        if not rule.waits:
            frozen |= done[:, None]
        state = state.with_stable(frozen & (state.status == VISIBLE))
    return state._replace(
        block=block,
        block_step=jnp.where(moved, 0, jnp.where(active, block_step, state.block_step)),
        block_masks=jnp.where(moved if after_forward else active, block_masks, state.block_masks),
        unmasked_steps=jnp.where(moved, 0, jnp.where(active, unmasked, state.unmasked_steps)),
        done=state.done | done,
    )


def _may_end(spec: StepSpec, state: DecodeState, unmasked: Int[Array, " B"]) -> Bool[Array, " B"]:
    """Returns whether sequences without masks are done, after so many forwards without any."""
    if not spec.rule.waits:
        return jnp.ones_like(state.done)
    visible = (state.status == VISIBLE).any(axis=1)
    if spec.rule.verifies:  # a draft is never left unverified
        return ~visible
    return ~visible | (unmasked > spec.rule.end_steps)


def stop_at_eos(spec: StepSpec, state: DecodeState) -> DecodeState:
    """Marks sequences done that have an EOS, or another stop id, with no mask before it.

    Only with `eos_early_stop`. Masks after the EOS become EOS (LLaDA2), and visible tokens there
    stable. While tokens before it are visible, a sequence first has the forwards that may follow a
    last mask.
    """
    if not spec.config.eos_early_stop:
        return state
    masked, position = state.masked, state.positions
    length = state.tokens.shape[1]
    first_mask = jnp.where(masked, position, length).min(axis=1)
    ends = (state.status >= STABLE) & spec.ends(state)
    first_eos = jnp.where(ends, position, length).min(axis=1)
    stopped = first_eos < first_mask
    follows = (state.status == VISIBLE) & (position > first_eos[:, None]) & stopped[:, None]
    state = state.with_eos(masked & stopped[:, None], spec.config.eos_id).with_stable(follows)
    done = stopped & _may_end(spec, state, state.unmasked_steps)
    return state._replace(done=state.done | done)


def stop_at_faults(state: DecodeState, faults: Bool[Array, "B L"]) -> DecodeState:
    """Marks sequences with faults done, and keeps the position of their first one."""
    faulty = faults.any(axis=1)
    first = jnp.argmax(faults, axis=1).astype(jnp.int32)
    return state._replace(done=state.done | faulty, fault=jnp.where(faulty, first, state.fault))


class Fault(NamedTuple):
    """A score that is not finite, at which a sequence has stopped; all counted from 0."""

    canvas: int
    forward: int
    position: int


def faults_of(state: DecodeState) -> list[Fault]:
    """Returns the faults of the sequences that have stopped at one."""
    fault, nfe = np.asarray(state.fault), np.asarray(state.nfe)
    return [Fault(*map(int, (row, nfe[row] - 1, fault[row]))) for row in np.flatnonzero(fault >= 0)]


def require_scores(faults: Sequence[Fault]) -> None:
    """Raises FloatingPointError that names each fault, if there are any."""
    faulty = [f"canvas {row}: forward {step}, position {at}" for row, step, at in faults]
    if faulty:
        raise FloatingPointError(
            f"the model's scores are NaN or infinite ({'; '.join(faulty)}; all counted from 0); "
            "nothing was decoded"
        )
