"""Revise policies: what becomes of visible tokens, whose confidence a step has measured again."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import SamplerConfig
from llada_jax.sampler.accept import Bounds, ranks
from llada_jax.sampler.canvas import MASKED, STABLE, Canvas
from llada_jax.types import Scores

FIRST_ACCEPTED = 30
"""What WINO takes for the commits before a block's first step."""


class Rescored(NamedTuple):
    """Visible tokens, and what a step says that should stand in their place."""

    said: Scores  # [B, L]
    at: Bool[Array, "B L"]  # visible tokens that were scored
    passed: Bool[Array, "B L"]  # positions before the window: the cache has what was fed last
    accepted: Int[Array, " B"]  # tokens that this step committed


Revise = Callable[[Canvas, Rescored, Bounds], Canvas]


def no_revision(canvas: Canvas, rescored: Rescored, bounds: Bounds) -> Canvas:
    """Tokens are stable when they are committed."""
    return canvas


def revise_staged(canvas: Canvas, rescored: Rescored, bounds: Bounds) -> Canvas:
    """llada.cpp's staged token stabilization (arXiv 2606.13740 §3.3).

    A token gives way to another one whose confidence reaches the accept rule's number, and is
    stable once its own reaches the revise rule's. Where the window has passed, the cache has keys
    and values of the token that was fed, so a new one there stays visible until it has been fed
    itself.
    """
    confidence = rescored.said.confidence
    other = rescored.said.token != canvas.tokens
    replaced = rescored.at & other & (confidence >= bounds.accept)
    kept = rescored.at & ~other
    stable = (kept | (replaced & ~rescored.passed)) & (confidence >= bounds.revise)
    return _changed(canvas, rescored, replaced, kept | replaced)._replace(
        state=jnp.where(stable, jnp.int8(STABLE), canvas.state)
    )


def revise_edit(canvas: Canvas, rescored: Rescored, bounds: Bounds) -> Canvas:
    """LLaDA2.1's token editing (arXiv 2602.08676): another token whose confidence reaches the
    number takes the place of the one that stands there."""
    other = rescored.said.token != canvas.tokens
    replaced = rescored.at & other & (rescored.said.confidence >= bounds.revise)
    return _changed(canvas, rescored, replaced, replaced | (rescored.at & ~other))


def revise_wino(
    canvas: Canvas, rescored: Rescored, bounds: Bounds, config: SamplerConfig
) -> Canvas:
    """WINO's verification (arXiv 2507.18578): tokens of earlier steps whose probability is below
    the number are masked again, where this step committed two tokens or more.

    Of as many as the step before had committed, or more, one less than those: the least probable.
    So every two steps make progress. Where the model prefers another token, the probability of the
    one that stands there is only known to be what the other leaves, which is what they are ranked
    by. It is a shadow's, which sees no other shadow; WINO's own see each other.
    """
    assert config.mask_id is not None
    confidence = rescored.said.confidence
    other = rescored.said.token != canvas.tokens
    probability = jnp.where(other, 1 - confidence, confidence)
    failed = (
        rescored.at & (other | (probability < bounds.revise)) & (rescored.accepted >= 2)[:, None]
    )
    last = jnp.where(canvas.block_step == 0, FIRST_ACCEPTED, canvas.accepted)[:, None]
    too_many = failed.sum(axis=1, keepdims=True) >= last
    rank = ranks(-probability, failed, config.tie_break)
    masked = failed & (~too_many | (rank < last - 1))
    return canvas._replace(
        tokens=jnp.where(masked, jnp.int32(config.mask_id), canvas.tokens),
        state=jnp.where(masked, jnp.int8(MASKED), canvas.state),
        confidence=jnp.where(masked, jnp.float32(0), canvas.confidence),
    )


def _changed(
    canvas: Canvas,
    rescored: Rescored,
    replaced: Bool[Array, "B L"],
    measured: Bool[Array, "B L"],
) -> Canvas:
    confidence: Float[Array, "B L"] = rescored.said.confidence.astype(jnp.float32)
    return canvas._replace(
        tokens=jnp.where(replaced, rescored.said.token, canvas.tokens),
        confidence=jnp.where(measured, confidence, canvas.confidence),
    )


def revise_for(config: SamplerConfig) -> Revise:
    """The revise policy of `config`."""
    rules: dict[str, Revise] = {
        "staged": revise_staged,
        "token_edit": revise_edit,
        "wino": partial(revise_wino, config=config),
    }
    return rules.get(config.accept, no_revision)
