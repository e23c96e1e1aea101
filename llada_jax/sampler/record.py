"""The record of a step: its scores, and what happened to each position.

`StepRecord` has the same shapes for every step, so that a compiled loop stores records of all steps
and the host makes a trace of them later. `StepView` is the part that callbacks see.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from llada_jax.sampler.spec import StepSpec
from llada_jax.sampler.state import MASKED, STABLE, VISIBLE, DecodeState, TopTokens, put
from llada_jax.types import HeadExtras, HeadOut, Scores


class Event(IntEnum):
    """What happened to a position."""

    COMMIT = 0
    FILL = 1
    """Became EOS without a prediction, because the sequence had stopped."""
    AHEAD = 2
    """The commit came from a draft: the position was not in the current block, or a drafter had
    proposed the token."""
    PROMOTE = 3
    """A visible token became stable, by its confidence."""
    REPLACE = 4
    """A visible token was replaced by another one."""
    REMASK = 5
    """A committed token was masked again."""
    FREEZE = 6
    """A visible token became stable as it was: nothing can revise it any more."""
    SCORE = 8
    """The forward's prediction for a position to which nothing else happened: its token, and the
    confidence in it. Only if the run kept its scores (`trace="scores"`)."""
    MARGIN = 9
    """The margin of a prediction: its token, and the difference of its probability and the second
    best one. Only if the run kept it (`trace="margins"`)."""


class ClassScores(NamedTuple):
    """The head's scores of a constraint's G classes by position; zeros if it was not scored."""

    ids: Int[Array, "B L G"]
    logits: Float[Array, "B L G"]
    noisy: Float[Array, "B L G"]  # with noise, for sampling
    mass: Float[Array, "B L G"] | None
    log_sum_exp: Float[Array, "B L"]


class StepCounts(NamedTuple):
    """How many rows of each kind a forward had."""

    live_rows: Int[Array, " B"]
    shadow_rows: Int[Array, " B"]
    draft_rows: Int[Array, " B"]
    refreshed: Int[Array, " B"]  # tokens
    head_rows: Int[Array, " B"]
    cache_length: Int[Array, " B"]  # cached positions that the rows read


class StepScores(NamedTuple):
    """The scores of a step by position of the canvas; token -1 at positions without a score."""

    here: Scores  # [B, L]
    rescored: Bool[Array, "B L"]  # committed tokens among the scored positions
    measured: HeadExtras | None = None  # of the block, if the rule requests it
    hidden: Float[Array, "B C D"] | None = None  # of the block, if the rule needs it
    probability: Float[Array, "B L"] | None = None  # of the current tokens, if the rule needs it
    classes: ClassScores | None = None  # under a constraint
    top: TopTokens | None = None  # [B, L, k], if it was requested

    @property
    def faults(self) -> Bool[Array, "B L"]:
        """Marks positions with a confidence that is not finite. Entropy and margin do not count: a
        backend may leave them NaN if no rule needs them."""
        return (self.here.token >= 0) & ~jnp.isfinite(self.here.confidence)


class StepRecord(NamedTuple):
    """What a step ran, and what happened to which position."""

    counts: StepCounts
    block: Int[Array, " B"]
    events: Int[Array, "B L"]  # a bit for each `Event`
    token: Int[Array, "B L"]  # after the step, as is the confidence
    confidence: Float[Array, "B L"]
    predicted: Int[Array, "B L"] | None = None  # by this forward; -1 without a score
    certainty: Float[Array, "B L"] | None = None  # of the prediction
    margin: Float[Array, "B L"] | None = None  # of the prediction before the second one


def record_of(
    spec: StepSpec,
    counts: StepCounts,
    before: DecodeState,
    revised: DecodeState,
    advanced: DecodeState,
    after: DecodeState,
) -> StepRecord:
    """Returns the record of a step from four states: at its start, after the rule's decision, after
    sequences have gone on to the next block, and at its end, with drafts accepted.

    Drafts of a drafter count as masks until a forward has verified them.
    """
    drafted = (before.status == VISIBLE) & (spec.config.drafter is not None)
    proposed, before = before.tokens, before.with_masks(drafted, spec.mask_id)
    was_masked, was_visible = before.masked, before.status == VISIBLE
    filled = after.filled & ~before.filled
    first = (before.nfe == 1) & ~before.done
    forced = first[:, None] & (before.status == STABLE)  # by a constraint, before any forward
    committed = (was_masked | forced) & (after.status >= VISIBLE) & ~filled
    unverified = (after.status == VISIBLE) & spec.rule.verifies
    accepted = drafted & (proposed == after.tokens)
    ahead = committed & (advanced.masked | unverified | accepted)
    flags = {
        Event.COMMIT: committed,
        Event.AHEAD: ahead,
        Event.PROMOTE: was_visible & (revised.status == STABLE),
        Event.REPLACE: was_visible & (revised.tokens != before.tokens) & (revised.status > MASKED),
        Event.REMASK: (before.status >= VISIBLE) & revised.masked,
        Event.FREEZE: (revised.status == VISIBLE) & (after.status == STABLE),
    }
    events = sum((flag.astype(jnp.int8) * (1 << kind) for kind, flag in flags.items()), jnp.int8(0))
    return StepRecord(counts, before.block, events, after.tokens, after.confidence)


def spread(at: Int[Array, "B Q"], scores: Scores, length: int) -> Scores:
    """Returns scores by position, [B, length]; token -1 at the other positions."""
    return Scores(put(at, scores.token, length, -1), *(put(at, x, length) for x in scores[1:]))


def token_probability(head: HeadOut) -> Float[Array, "B Q"]:
    """Returns the probability of the current token of each position, the last one listed.

    It is exact if the head has measured it. Else it is an upper bound for a token that is not the
    preferred one: it has at most the probability of the preferred one, and at most the rest.
    """
    measured, best = head.measured, head.scores.confidence
    if measured is None or measured.listed is None:
        return jnp.minimum(best, 1 - best)
    return jnp.exp(measured.listed[..., -1] - measured.log_sum_exp)


def top_tokens(at: Int[Array, "B Q"], head: HeadOut, length: int, k: int) -> TopTokens:
    """Returns the most probable tokens by position, [B, length, k]; the predicted token alone if
    the head has measured no others."""
    measured = head.measured
    if measured is None or measured.top_ids is None:
        ids, logprobs = head.scores.token[..., None], jnp.log(head.scores.confidence)[..., None]
    else:
        assert measured.top_logits is not None
        ids = measured.top_ids[..., :k]
        logprobs = measured.top_logits[..., :k] - measured.log_sum_exp[..., None]
    rest = [(0, 0), (0, 0), (0, k - ids.shape[-1])]
    ids = jnp.pad(ids, rest, constant_values=-1)
    logprobs = jnp.pad(logprobs.astype(jnp.float32), rest, constant_values=-jnp.inf)
    return TopTokens(put(at, ids, length), put(at, logprobs, length))


class StepView(NamedTuple):
    """What `on_step` is called with after each forward, as numpy arrays."""

    step: int
    rows: int
    tokens: Int[np.ndarray, "B L"]
    state: Int[np.ndarray, "B L"]  # PAD, PROMPT, MASKED, VISIBLE or STABLE of each position
    confidence: Float[np.ndarray, "B L"]
    fresh: Bool[np.ndarray, "B L"]  # positions that this step committed
    nfe: Int[np.ndarray, " B"]
    top: TopTokens | None = None  # as in `DecodeState`


OnStep = Callable[[StepView], None]


def view_of(step: int, rows: int, state: DecodeState, status_before: Any) -> StepView:
    """Returns the view of a state after a step."""
    length = int(state.end.max())

    def copied(array: Any) -> np.ndarray:  # the next step reuses the state's memory
        return np.array(array)[:, :length]

    status = copied(state.status)
    return StepView(
        step=step,
        rows=rows,
        tokens=copied(state.tokens),
        state=status,
        confidence=copied(state.confidence),
        fresh=status != status_before[:, :length],
        nfe=np.array(state.nfe),
        top=jax.tree.map(copied, state.top),
    )
