"""The decision of a step: commit and revise, go on to the next block, stop."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from llada_jax.sampler.advance import advance, ends_of, stop_faulty, stop_rows
from llada_jax.sampler.candidates import Candidates, noise_quota, quota
from llada_jax.sampler.canvas import MASKED, STABLE, VISIBLE, Canvas, take
from llada_jax.sampler.constrained import constrained, forced, held
from llada_jax.sampler.own_rule import decide_by_own_rule, next_for_own_rule
from llada_jax.sampler.record import StepCounts, StepRecord, StepScores, record_of
from llada_jax.sampler.rules.rule import Rescored, accepted
from llada_jax.sampler.setup import Setup
from llada_jax.sampler.step_plan import StepPlan
from llada_jax.types import Scores


def decide(
    setup: Setup, canvas: Canvas, plan: StepPlan, counts: StepCounts, scores: StepScores
) -> tuple[Canvas, StepRecord]:
    """Returns the canvas after a step's decision, and the record of the step."""
    before, rescored, grammar = canvas, plan.query.rescored, setup.grammar
    said, scores = scores, constrained(setup, canvas, scores)
    if canvas.latest is not None:
        found = partial(jnp.where, scores.here.token >= 0)
        canvas = canvas._replace(latest=jax.tree.map(found, scores.here, canvas.latest))
    candidates = _block_candidates(setup, canvas, scores.here, ~canvas.done)
    if setup.own_rule is not None:
        revised = decide_by_own_rule(setup, canvas, plan, candidates, scores)
    else:
        revised = _commit_and_revise(setup, canvas, candidates, plan, scores)
    if grammar is not None and setup.may_differ:
        revised = held(grammar, before, revised, said)
    else:
        revised = forced(setup, revised)
    edited = ((revised.tokens != before.tokens) & rescored).any(axis=1)
    advanced = setup.window.moved(advance(setup, revised, ~before.done, edited), setup.config)
    canvas = decided = stop_rows(setup, advanced)
    canvas = next_for_own_rule(canvas, canvas.block != before.block)
    if setup.window.drafts and not setup.needs("drafts"):
        moved = (canvas.block != before.block) & ~canvas.done
        if setup.may_differ:
            scores = constrained(setup, canvas, said)
        canvas = _take_drafts(setup, canvas, scores.here, moved)
    if canvas.remasks is not None:
        again = (before.state >= VISIBLE) & revised.masked
        canvas = canvas._replace(remasks=canvas.remasks + again.astype(jnp.int32))
    record = record_of(setup.rule, counts, before, revised, decided, canvas)
    if setup.keeps_scores:
        here, margins = scores.here, setup.keeps_scores == "margins"
        record = record._replace(predicted=here.token, certainty=here.confidence)
        record = record._replace(margin=here.margin if margins else None)
    return stop_faulty(canvas, scores.faults & ~before.done[:, None]), record


def _commit_and_revise(
    setup: Setup, canvas: Canvas, candidates: Candidates, plan: StepPlan, scores: StepScores
) -> Canvas:
    before = canvas.state
    taken = accepted(setup.rule, candidates)
    canvas = _commit_block(setup, canvas, candidates, taken, ahead=False)
    fresh = (before == MASKED) & (canvas.state != MASKED)
    rescored = Rescored(
        scores=scores.here,
        standing=scores.here.confidence if scores.standing is None else scores.standing,
        at=plan.query.rescored,
        passed=canvas.positions < canvas.settled[:, None],
        fresh=fresh,
        ends=ends_of(setup, canvas),
        config=setup.config,
    )
    return setup.rule.revise(canvas, rescored)._replace(accepted=fresh.sum(1, dtype=jnp.int32))


def _take_drafts(setup: Setup, canvas: Canvas, scores: Scores, moved: Bool[Array, " B"]) -> Canvas:
    """Blocks that have become current take over drafts by the scores of this very forward; a block
    that they complete makes way for the next one at once."""

    def take_over(carry):
        canvas, moved = carry
        at = canvas.block
        candidates = _block_candidates(setup, canvas, scores, moved)
        bound = setup.config.window.draft_threshold
        taken = setup.rule.accept(candidates) if bound is None else candidates.reach(bound)
        canvas = _commit_block(setup, canvas, candidates, taken, ahead=True)
        canvas = stop_rows(setup, advance(setup, canvas, moved, None))
        return canvas, (canvas.block != at) & ~canvas.done

    return jax.lax.while_loop(lambda carry: carry[1].any(), take_over, (canvas, moved))[0]


def _block_candidates(
    setup: Setup, canvas: Canvas, scores: Scores, where: Bool[Array, " B"]
) -> Candidates:
    """Returns the positions of the current block, and what `scores`, [B, L], say of them; only rows
    of the batch in `where` have candidates."""
    config, step, steps = setup.config, canvas.block_step, setup.config.steps_per_block
    positions = canvas.block_positions(config.block_length)
    scores = Scores(*(take(array, positions) for array in scores))
    masked = take(canvas.masked, positions) & (positions < canvas.end[:, None])
    random = jnp.zeros(positions.shape, jnp.float32)
    if config.remasking == "random":
        keys = canvas.noise_keys(positions)
        random = jax.vmap(jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32)))(keys)
    if config.parity.schedule == "noise":
        due = noise_quota(masked.sum(axis=1, dtype=canvas.block_masks.dtype), step, steps)
    else:
        due = quota(canvas.block_masks, step, steps)
    is_open = masked & (scores.token >= 0) & where[:, None]
    return Candidates(scores, is_open, random, due, config.remasking, config.parity)


def _commit_block(
    setup: Setup, canvas: Canvas, candidates: Candidates, taken: Bool[Array, "B C"], ahead: bool
) -> Canvas:
    """Returns the canvas with the accepted candidates of the current block.

    Drafts (`ahead`) of a rule that revises are not stable before a forward of their own block has
    measured them again.
    """
    positions = canvas.block_positions(setup.config.block_length)
    token, confidence, *_ = candidates.scores
    stable = setup.rule.stable(confidence)
    if ahead and setup.rule.revises:
        stable = jnp.zeros_like(stable)
    state = jnp.where(stable, jnp.int8(STABLE), jnp.int8(VISIBLE))
    return canvas.committed(positions, token, confidence, taken, state, setup.mask_id)
