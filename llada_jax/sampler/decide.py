"""The decision of a step: commit and revise, go on to the next block, stop."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from llada_jax.sampler.advance import advance, stop_at_eos, stop_at_faults
from llada_jax.sampler.constrained import commit_forced, constrain_scores, hold_to_text
from llada_jax.sampler.observe import (
    completed,
    keep_drafts,
    observe,
    remember,
    require_same_state,
    start_blocks,
)
from llada_jax.sampler.record import StepCounts, StepRecord, StepScores, record_of
from llada_jax.sampler.rules.rule import Decision, Observation, Revision, Rule, ranks
from llada_jax.sampler.spec import StepSpec
from llada_jax.sampler.state import STABLE, VISIBLE, DecodeState, put, take


def decide(
    spec: StepSpec, state: DecodeState, counts: StepCounts, raw: StepScores
) -> tuple[DecodeState, StepRecord]:
    """Returns the state after a step's decision, and the record of the step.

    Args:
      raw: Scores before a constraint is applied to them.
    """
    before, scores = state, constrain_scores(spec, state, raw)
    state = keep_drafts(state, scores.here)
    seen = observe(spec, state, scores, ~state.done)
    seen = replace(seen, preview=partial(apply_decision, spec, state, seen))
    decision, rule_state = spec.rule.decide(seen, state.rule.state)
    require_same_state(spec.rule, state.rule.state, rule_state)
    revised = apply_decision(spec, state, seen, decision)
    memory = remember(state.rule, rule_state, state.done, seen, scores)
    revised = revised._replace(rule=memory)
    # Anything but committing what was predicted may leave the allowed texts.
    others = (decision.token, decision.end, decision.ahead)
    differs = spec.rule.revises or any(part is not None for part in others)
    if spec.grammar is not None and differs:
        revised = hold_to_text(spec.grammar, before, revised, raw)
    else:
        revised = commit_forced(spec, revised)
    edited = ((revised.tokens != before.tokens) & scores.rescored).any(axis=1)
    advanced = advance(spec, revised, ~before.done, edited)
    advanced = stop_at_eos(spec, spec.window.after_step(advanced, spec.window_context()))
    state = start_blocks(advanced, advanced.block != before.block)
    if spec.window.drafts and not spec.needs("drafts"):
        moved = (state.block != before.block) & ~state.done
        if spec.grammar is not None and differs:
            scores = constrain_scores(spec, state, raw)
        state = _accept_drafts(spec, state, scores, moved)
    state = _count_remasks(state, (before.status >= VISIBLE) & revised.masked)
    record = record_of(spec.rule, counts, before, revised, advanced, state)
    if spec.keeps_scores:
        here, margins = scores.here, spec.keeps_scores == "margins"
        record = record._replace(predicted=here.token, certainty=here.confidence)
        record = record._replace(margin=here.margin if margins else None)
    return stop_at_faults(state, scores.faults & ~before.done[:, None]), record


def apply_decision(
    spec: StepSpec, state: DecodeState, seen: Observation, decision: Decision
) -> DecodeState:
    """Returns the state after what a rule decides, as far as that is allowed.

    A forward commits at least one token unless the rule may wait, nothing outside the block changes
    but by `Revision` and drafts, and no position is masked again more often than the rule allows.

    Raises ValueError for a decision of wrong shapes or dtypes.
    """
    rule, length = spec.rule, state.tokens.shape[1]
    full, positions = completed(rule, decision, seen), seen.position
    commit = seen.masked & full.commit
    if not rule.may_wait:
        best = ranks(seen.priority, seen.masked) == 0
        commit = jnp.where(commit.any(axis=1, keepdims=True), commit, seen.masked & best)
    remask = put(positions, seen.committed & full.remask, length)
    remask &= _may_remask(rule, seen.canvas.remasks)
    change = seen.committed & full.replace & ~take(remask, positions)
    stable = full.stable if rule.revises else jnp.ones_like(commit)
    fresh = jnp.where(stable, jnp.int8(STABLE), jnp.int8(VISIBLE))
    status = jnp.where(commit, fresh, take(state.status, positions))
    write = commit | change
    token = jnp.where(full.token >= 0, full.token, seen.predicted)
    token = jnp.where(write, token, seen.token)
    if decision.confidence is not None:
        write |= seen.rescored
    state = state.with_tokens(positions, token, full.confidence, write, status, spec.mask_id)
    state = state.with_masks(remask, spec.mask_id)
    if decision.canvas is not None:
        drafted = (commit & ~stable).any(axis=1)
        state = _revise(spec, state, seen, decision.canvas, drafted)
    if seen.drafts is not None and decision.ahead is not None:
        everywhere = jnp.broadcast_to(state.positions, state.tokens.shape)
        status = jnp.full_like(state.status, VISIBLE if rule.revises else STABLE)
        drafts, ahead = seen.drafts, seen.drafts.masked & full.ahead
        state = state.with_tokens(
            everywhere, drafts.predicted, drafts.confidence, ahead, status, spec.mask_id
        )
    if decision.end is None or spec.config.eos_id is None:  # without an EOS no rule may end
        return state
    left = state.masked & (full.end & ~state.done)[:, None]
    return state.with_eos(left, spec.config.eos_id)


def _revise(
    spec: StepSpec,
    state: DecodeState,
    seen: Observation,
    revision: Revision,
    drafted: Bool[Array, " B"],
) -> DecodeState:
    """Returns the state after a rule's changes anywhere on the canvas."""
    canvas = seen.canvas
    replace = canvas.rescored & revision.replace
    state = state._replace(tokens=jnp.where(replace, canvas.predicted, state.tokens))
    if revision.confidence is not None:
        confidence = jnp.where(canvas.rescored, revision.confidence, state.confidence)
        state = state._replace(confidence=confidence)
    state = state.with_stable(revision.stable & (state.status == VISIBLE))
    if revision.remask is not None:
        remask = revision.remask & (state.status >= VISIBLE)
        remask &= _may_remask(spec.rule, canvas.remasks)
        state = state.with_masks(remask, spec.mask_id)
    if revision.restart is None:
        return state
    # A draft that completes the canvas is verified by a forward of a block after the last one.
    complete = drafted & ~state.masked.any(axis=1)
    state = state._replace(block=state.block + complete.astype(jnp.int32))
    return _restart_block(state, revision.restart, spec.config.block_length)


def _restart_block(state: DecodeState, at: Int[Array, " B"], block_length: int) -> DecodeState:
    """Returns the state whose block starts anew at a position, one block back; L does nothing."""
    restarts = at < state.tokens.shape[1]
    block = state.block - restarts.astype(jnp.int32)
    return state._replace(
        block=block,
        origin=jnp.where(restarts, at - block * block_length, state.origin),
        n_cached=jnp.where(restarts, jnp.minimum(state.n_cached, at), state.n_cached),
        block_step=jnp.where(restarts, 0, state.block_step),
    )


def _may_remask(rule: Rule, remasks: Int[Array, "B L"]) -> Bool[Array, "B L"]:
    if not rule.revises:
        return jnp.zeros(remasks.shape, bool)
    return jnp.ones(remasks.shape, bool) if rule.max_remasks is None else remasks < rule.max_remasks


def _count_remasks(state: DecodeState, remasked: Bool[Array, "B L"]) -> DecodeState:
    remasks = state.rule.remasks
    if remasks is None:
        return state
    return state._replace(rule=state.rule._replace(remasks=remasks + remasked.astype(jnp.int32)))


def _accept_drafts(
    spec: StepSpec, state: DecodeState, scores: StepScores, moved: Bool[Array, " B"]
) -> DecodeState:
    """Commits drafts of blocks that have become current, by the scores of this very forward.

    A block that they complete makes way for the next one at once. Drafts of a rule that revises are
    not stable before a forward of their own block has scored them again.
    """
    scores = StepScores(scores.here, jnp.zeros_like(scores.rescored))
    bound = spec.window.draft_threshold

    def accept(carry):
        state, moved = carry
        block = state.block
        seen = observe(spec, state, scores, moved)
        accepted = spec.rule.accept(seen) if bound is None else seen.reaches(bound)
        status = jnp.full(accepted.shape, VISIBLE if spec.rule.revises else STABLE, jnp.int8)
        state = state.with_tokens(
            seen.position, seen.predicted, seen.confidence, accepted, status, spec.mask_id
        )
        state = stop_at_eos(spec, advance(spec, state, moved, None))
        return state, (state.block != block) & ~state.done

    return jax.lax.while_loop(lambda carry: carry[1].any(), accept, (state, moved))[0]
