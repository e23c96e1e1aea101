"""The decision of a step: commit and revise, go on to the next block, stop.

The rule observes the scores and decides; forbidden parts of its decision are ignored, and under a
constraint its decision is projected onto an allowed text. Then each sequence with a finished block
goes on to its next block with masks, and drafts of that block are accepted by the scores of the
same forward. A sequence is done if its canvas is full, if its answer has ended before that, or if
the model returned a score that is not finite.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

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
from llada_jax.sampler.state import STABLE, VISIBLE, DecodeState, choose, put, take


class Decided(NamedTuple):
    """A rule's decision on a step."""

    state: DecodeState  # after it
    strays: tuple[()] | None
    """`()` if the decision may leave a constraint's texts: if it does anything but commit
    predictions of this forward. Programs choose by it when they are traced."""


def decide(
    spec: StepSpec, state: DecodeState, counts: StepCounts, scores: StepScores
) -> tuple[DecodeState, StepRecord]:
    """Returns the state after a step's decision, and the record of the step."""
    if spec.grammar is None:
        decided = apply_rule(spec, state, scores)
        return finish_step(spec, state, decided.state, counts, scores)
    constrained = constrain_scores(spec, state, scores)
    decided = apply_rule(spec, state, constrained)
    if decided.strays is None:
        revised = commit_forced(spec, decided.state)
        return finish_step(spec, state, revised, counts, constrained)
    revised = hold_to_text(spec, state, decided.state, scores)
    return finish_step(spec, state, revised, counts, constrained, scores)


def apply_rule(spec: StepSpec, state: DecodeState, scores: StepScores) -> Decided:
    """Lets the rule decide. Under a constraint, `scores` are those of its texts."""
    state = keep_drafts(state, scores.here)
    seen = observe(spec, state, scores, ~state.done)
    seen = replace(seen, preview=partial(_apply_decision, spec, state, seen))
    decision, rule_state = spec.rule.decide(seen, state.rule.state)
    require_same_state(spec.rule, state.rule.state, rule_state)
    revised = _apply_decision(spec, state, seen, decision)
    memory = remember(state.rule, rule_state, state.done, seen, scores)
    others = (decision.token, decision.end, decision.ahead)
    differs = spec.rule.revises or any(part is not None for part in others)
    return Decided(revised._replace(rule=memory), () if differs else None)


def finish_step(
    spec: StepSpec,
    before: DecodeState,
    revised: DecodeState,
    counts: StepCounts,
    scores: StepScores,
    raw: StepScores | None = None,
) -> tuple[DecodeState, StepRecord]:
    """Moves sequences on after a decision; returns the state and the record of the step.

    Args:
      before: The state that was decided.
      revised: The state after the decision.
      raw: The scores without the constraint, if the decision may have led to another of its texts.
    """
    edited = ((revised.tokens != before.tokens) & scores.rescored).any(axis=1)
    advanced = _advance(spec, revised, ~before.done, edited)
    advanced = _stop_at_eos(spec, spec.window.after_step(advanced, spec.window_context()))
    state = start_blocks(advanced, advanced.block != before.block)
    if spec.window.drafts and not spec.needs("drafts"):
        moved = (state.block != before.block) & ~state.done
        if raw is not None:
            scores = constrain_scores(spec, state, raw)
        state = _accept_drafts(spec, state, scores, moved)
    if (remasks := state.rule.remasks) is not None:
        remasked = (before.status >= VISIBLE) & revised.masked
        memory = state.rule._replace(remasks=remasks + remasked.astype(jnp.int32))
        state = state._replace(rule=memory)
    if state.top is not None and scores.top is not None:
        is_open = before.masked | (state.tokens != before.tokens)
        if spec.config.drafter is not None:  # this forward has verified its drafts
            is_open |= before.status == VISIBLE
        newer = partial(choose, is_open & (scores.here.token >= 0))
        state = state._replace(top=jax.tree.map(newer, scores.top, state.top))
    record = record_of(spec, counts, before, revised, advanced, state)
    if spec.keeps_scores:
        here, margins = scores.here, spec.keeps_scores == "margins"
        record = record._replace(predicted=here.token, certainty=here.confidence)
        record = record._replace(margin=here.margin if margins else None)
    return _stop_at_faults(state, scores.faults & ~before.done[:, None]), record


def _apply_decision(
    spec: StepSpec, state: DecodeState, seen: Observation, decision: Decision
) -> DecodeState:
    """Returns the state after the allowed parts of a rule's decision.

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
    at, restarts = revision.restart, revision.restart < state.tokens.shape[1]
    block = state.block + complete.astype(jnp.int32) - restarts.astype(jnp.int32)
    return state._replace(
        block=block,
        origin=jnp.where(restarts, at - block * spec.config.block_length, state.origin),
        n_cached=jnp.where(restarts, jnp.minimum(state.n_cached, at), state.n_cached),
        block_step=jnp.where(restarts, 0, state.block_step),
    )


def _may_remask(rule: Rule, remasks: Int[Array, "B L"]) -> Bool[Array, "B L"]:
    if not rule.revises:
        return jnp.zeros(remasks.shape, bool)
    return jnp.ones(remasks.shape, bool) if rule.max_remasks is None else remasks < rule.max_remasks


def _accept_drafts(
    spec: StepSpec, state: DecodeState, scores: StepScores, moved: Bool[Array, " B"]
) -> DecodeState:
    """Commits drafts of blocks that have become current, by the scores of this very forward.

    A block that they complete makes way for the next one at once. Drafts of a rule that revises are
    not stable before a forward has scored them again as part of the current block.
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
        state = _stop_at_eos(spec, _advance(spec, state, moved, None))
        return state, (state.block != block) & ~state.done

    return jax.lax.while_loop(lambda carry: carry[1].any(), accept, (state, moved))[0]


def skip_finished(spec: StepSpec, state: DecodeState) -> DecodeState:
    """Returns the state before the first forward, in which tokens that need none were committed: it
    begins at the first block with masks."""
    return _stop_at_eos(spec, _advance(spec, state, ~state.done, None))


def _advance(
    spec: StepSpec, state: DecodeState, active: Bool[Array, " B"], edited: Bool[Array, " B"] | None
) -> DecodeState:
    """Moves each active sequence with a finished block to its next block with masks, or marks it
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
    """Returns whether sequences without masks are done, `unmasked` forwards after the last mask."""
    if not spec.rule.waits:
        return jnp.ones_like(state.done)
    visible = (state.status == VISIBLE).any(axis=1)
    if spec.rule.verifies:  # a draft is never left unverified
        return ~visible
    return ~visible | (unmasked > spec.rule.end_steps)


def _stop_at_eos(spec: StepSpec, state: DecodeState) -> DecodeState:
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


def _stop_at_faults(state: DecodeState, faults: Bool[Array, "B L"]) -> DecodeState:
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
