"""The decision of a step: commit and revise what the scores allow, go on to the next block, stop."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from llada_jax.sampler.advance import advance
from llada_jax.sampler.branch import expected_next, take_branch
from llada_jax.sampler.canvas import MASKED, Canvas, positions_of
from llada_jax.sampler.commit import block_candidates, commit_block
from llada_jax.sampler.decoding import Decoding
from llada_jax.sampler.record import StepCounts, StepRecord, StepScores, record_of
from llada_jax.sampler.rules.base import Rescored, accepted
from llada_jax.sampler.step_plan import StepPlan
from llada_jax.sampler.stop import stop_rows
from llada_jax.types import Scores


def decide(
    decoding: Decoding, canvas: Canvas, plan: StepPlan, counts: StepCounts, scores: StepScores
) -> tuple[Canvas, StepRecord]:
    """Returns the canvas after a step's decision, and the record of the step."""
    before, rescored = canvas, plan.query.rescored
    canvas = canvas._replace(latest=scores.over(canvas.latest))
    candidates = block_candidates(decoding, canvas, scores.here, ~canvas.done)
    transfer_mask = accepted(decoding.rule, candidates)
    canvas = commit_block(decoding, canvas, candidates, transfer_mask)
    committed = (before.state == MASKED) & (canvas.state != MASKED)
    n_committed = committed.sum(1, dtype=jnp.int32)
    revised = decoding.rule.revise(
        canvas,
        Rescored(
            scores=scores.here,
            at=rescored,
            passed=positions_of(canvas) < canvas.settled[:, None],
            committed=n_committed,
            parity=decoding.config.parity,
            mask_id=decoding.mask_id,
        ),
    )
    edited = ((revised.tokens != before.tokens) & rescored).any(axis=1)
    canvas = revised._replace(accepted=n_committed)
    canvas = decided = stop_rows(decoding, advance(decoding, canvas, edited, ~before.done))
    if decoding.window.drafts:
        moved = (canvas.block != before.block) & ~canvas.done
        canvas = _take_drafts(decoding, canvas, scores.here, moved)
    if decoding.window.branches:
        canvas = take_branch(decoding, canvas, scores)
        canvas = canvas._replace(hypothesis=expected_next(decoding, canvas))
    return canvas, record_of(counts, before, revised, decided, canvas)


def _take_drafts(
    decoding: Decoding, canvas: Canvas, scores: Scores, moved: Bool[Array, " B"]
) -> Canvas:
    """Blocks that have become current take over drafts by the scores of this very forward; a block
    that they complete makes way for the next one at once."""

    def another(carry):
        return carry[1].any()

    def take_over(carry):
        canvas, moved = carry
        at = canvas.block
        candidates = block_candidates(decoding, canvas, scores, moved)
        bound = decoding.config.window.draft_threshold
        taken = decoding.rule.accept(candidates) if bound is None else candidates.reach(bound)
        canvas = commit_block(decoding, canvas, candidates, taken, ahead=True)
        nothing = jnp.zeros_like(moved)
        canvas = advance(decoding, canvas, nothing, moved, counts=False)
        canvas = stop_rows(decoding, canvas)
        return canvas, (canvas.block != at) & ~canvas.done

    return jax.lax.while_loop(another, take_over, (canvas, moved))[0]
