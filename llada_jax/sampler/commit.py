"""Commits: what a step's scores put into the current block."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from llada_jax.sampler.candidates import Candidates, noise_quota, quota
from llada_jax.sampler.canvas import MASKED, STABLE, VISIBLE, Canvas, take
from llada_jax.sampler.setup import Setup
from llada_jax.types import Scores


def block_candidates(
    setup: Setup, canvas: Canvas, scores: Scores, where: Bool[Array, " B"]
) -> Candidates:
    """Returns the positions of the current block, and what `scores`, [B, L], say of them.

    Args:
      where: batch rows that have candidates at all.
    """
    config = setup.config
    positions = canvas.block_positions(setup.config.block_length)
    scores = Scores(*(take(array, positions) for array in scores))
    state = take(canvas.state, positions)
    is_open = (state == MASKED) & (positions < canvas.end[:, None]) & (scores.token >= 0)
    random = jnp.zeros(positions.shape, jnp.float32)
    if config.remasking == "random":
        keys = step_keys(canvas, positions, canvas.nfe[:, None])
        random = jax.vmap(jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32)))(keys)
    due = _due(setup, canvas, (state == MASKED) & (positions < canvas.end[:, None]))
    return Candidates(
        scores, is_open & where[:, None], random, due, config.remasking, config.parity
    )


def _due(setup: Setup, canvas: Canvas, masked: Bool[Array, "B C"]) -> Int[Array, " B"]:
    """Returns how many tokens the schedule of `steps` commits in this step."""
    step, steps = canvas.block_step, setup.config.steps_per_block
    if setup.config.parity.schedule == "noise":
        return noise_quota(masked.sum(axis=1, dtype=canvas.block_masks.dtype), step, steps)
    return quota(canvas.block_masks, step, steps)


def commit_block(
    setup: Setup,
    canvas: Canvas,
    candidates: Candidates,
    transfer_mask: Bool[Array, "B C"],
    *,
    ahead: bool = False,
) -> Canvas:
    """Returns the canvas with the accepted candidates of the current block.

    Drafts (`ahead`) of a rule that revises are not stable before a forward of their own block has
    measured them again.
    """
    scores, rule = candidates.scores, setup.rule
    stable = rule.stable(scores.confidence)
    if ahead and rule.revises:
        stable = jnp.zeros_like(stable)
    states = jnp.where(stable, jnp.int8(STABLE), jnp.int8(VISIBLE))
    positions = canvas.block_positions(setup.config.block_length)
    confidence = scores.confidence
    return canvas.committed(
        positions, scores.token, confidence, transfer_mask, states, setup.mask_id
    )


def step_keys(
    canvas: Canvas, positions: Int[Array, "B C"], step: Int[Array, "B C"]
) -> Key[Array, "B C"]:
    """Returns a random key for each position in forward number `step`."""
    in_row = jax.vmap(
        lambda key, step, position: jax.random.fold_in(jax.random.fold_in(key, step), position),
        (None, 0, 0),
    )
    return jax.vmap(in_row)(canvas.key, jnp.broadcast_to(step, positions.shape), positions)
