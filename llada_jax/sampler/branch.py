"""The branch of lossless decoding: the step after the next one, computed before it is known."""

from functools import partial

import jax
import jax.numpy as jnp

from llada_jax.sampler.advance import advance
from llada_jax.sampler.canvas import Canvas, Hypothesis, block_start, in_span, masks_left
from llada_jax.sampler.commit import block_candidates, commit_block
from llada_jax.sampler.decoding import Decoding
from llada_jax.sampler.record import StepScores
from llada_jax.sampler.rules.base import accepted
from llada_jax.sampler.stop import stop_rows


def take_branch(decoding: Decoding, canvas: Canvas, scores: StepScores) -> Canvas:
    """Where this step committed just what was expected, the branch is the next step's forward:
    decides that one, too."""
    assert canvas.hypothesis is not None
    expected, rows = canvas.hypothesis
    hit = rows.any(axis=1) & ~canvas.done & (canvas.tokens == expected).all(axis=1)
    latest = StepScores(scores.ahead, scores.here).over(canvas.latest)
    canvas = canvas._replace(
        step=canvas.step + hit.astype(canvas.step.dtype),
        latest=jax.tree.map(partial(jnp.where, hit[:, None]), latest, canvas.latest),
    )
    candidates = block_candidates(decoding, canvas, scores.ahead, hit)
    canvas = commit_block(decoding, canvas, candidates, accepted(decoding.rule, candidates))
    return stop_rows(decoding, advance(decoding, canvas, jnp.zeros_like(hit), hit))


def expected_next(decoding: Decoding, canvas: Canvas) -> Hypothesis:
    """Returns what the next step is expected to commit, judging by the last scores; and the rows of
    the step after it, while the block has few masks left."""
    length = decoding.config.block_length
    left = masks_left(canvas, length)
    late = (left > 0) & (left <= decoding.config.window.lookahead_trigger) & ~canvas.done
    coming = canvas._replace(step=canvas.step + 1)
    candidates = block_candidates(decoding, coming, canvas.latest, late)
    then = commit_block(decoding, coming, candidates, accepted(decoding.rule, candidates))
    expected = late & (then.tokens != canvas.tokens).any(axis=1)
    then = advance(decoding, then, jnp.zeros_like(late), expected)
    start = block_start(canvas, length)
    stop = jnp.minimum(block_start(then, length) + length, then.end)
    rows = in_span(canvas, start, stop) & (expected & ~then.done)[:, None]
    return Hypothesis(then.tokens, rows)
