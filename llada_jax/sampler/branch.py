"""The branch of lossless decoding: the step after the next one, computed before it is known."""

from functools import partial

import jax
import jax.numpy as jnp

from llada_jax.sampler.advance import advance
from llada_jax.sampler.canvas import Canvas, Hypothesis, block_start, in_span, masks_left
from llada_jax.sampler.commit import block_candidates, commit_block
from llada_jax.sampler.constrained import constrained
from llada_jax.sampler.record import StepScores
from llada_jax.sampler.rules.rule import accepted
from llada_jax.sampler.setup import Setup
from llada_jax.sampler.stop import stop_rows


def take_branch(setup: Setup, canvas: Canvas, scores: StepScores) -> Canvas:
    """Decides the next step, too, where this one committed just what was expected: the branch is
    that step's forward."""
    assert canvas.hypothesis is not None
    expected, rows = canvas.hypothesis
    hit = rows.any(axis=1) & ~canvas.done & (canvas.tokens == expected).all(axis=1)
    ahead = scores.ahead
    if setup.grammar is not None and scores.classes_ahead is not None:
        ahead, _ = constrained(setup.grammar, canvas, ahead, scores.classes_ahead)
    latest = StepScores(ahead, scores.here).over(canvas.latest)
    canvas = canvas._replace(
        step=canvas.step + hit.astype(canvas.step.dtype),
        latest=jax.tree.map(partial(jnp.where, hit[:, None]), latest, canvas.latest),
    )
    candidates = block_candidates(setup, canvas, ahead, hit)
    canvas = commit_block(setup, canvas, candidates, accepted(setup.rule, candidates))
    return stop_rows(setup, advance(setup, canvas, jnp.zeros_like(hit), hit))


def expected_next(setup: Setup, canvas: Canvas) -> Hypothesis:
    """Returns what the next step is expected to commit, judging by the last scores; and the rows of
    the step after it, while the block has few masks left."""
    length = setup.config.block_length
    left = masks_left(canvas, length)
    late = (left > 0) & (left <= setup.config.window.lookahead_trigger) & ~canvas.done
    coming = canvas._replace(step=canvas.step + 1)
    candidates = block_candidates(setup, coming, canvas.latest, late)
    then = commit_block(setup, coming, candidates, accepted(setup.rule, candidates))
    expected = late & (then.tokens != canvas.tokens).any(axis=1)
    then = advance(setup, then, jnp.zeros_like(late), expected)
    start = block_start(canvas, length)
    stop = jnp.minimum(block_start(then, length) + length, then.end)
    rows = in_span(canvas, start, stop) & (expected & ~then.done)[:, None]
    return Hypothesis(then.tokens, rows)
