"""A step under a constraint: what is predicted agrees with one text, and what is decided with one.

A rule sees, at masked positions, the tokens of the best text that agrees with the state: whatever
it commits of them can be finished. Where it may change tokens, what it did is then held to one
text, which has as much of it as any.
"""

from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.constraint.reach import Grammar, reach
from llada_jax.sampler.advance import advance, stop_at_eos
from llada_jax.sampler.record import ClassScores, StepScores
from llada_jax.sampler.spec import StepSpec
from llada_jax.sampler.state import DecodeState, put
from llada_jax.types import Asked, HeadOut

_LOWEST = -1e4
"""The log-probability of a class whose ids have none."""
_COMMITTED, _REPLACED = 200.0, 20.0
"""What a decision is worth beside log-probabilities, where texts are compared."""


def with_classes(spec: StepSpec, asked: Asked | None) -> Asked | None:
    """Returns what is asked of the head, and the classes of a constraint beside it."""
    grammar = spec.grammar
    if grammar is None:
        return asked
    return replace(
        asked or Asked(),
        n_classes=grammar.n_classes,
        class_of=grammar.class_of,
        class_mass=grammar.confidence == "allowed",
        class_samples=spec.config.temperature > 0,
    )


def class_scores(at: Int[Array, "B Q"], head: HeadOut, length: int) -> ClassScores:
    """Returns what the head says of classes by position."""
    said = cast(Any, head.measured)
    noisy = said.class_logits if said.class_noisy is None else said.class_noisy
    found = ClassScores(said.class_ids, said.class_logits, noisy, said.class_mass, said.log_sum_exp)
    return jax.tree.map(lambda array: put(at, array, length), found)


def constrain_scores(spec: StepSpec, state: DecodeState, step: StepScores) -> StepScores:
    """Returns the scores of a step with tokens that the constraint allows, and the probability of
    the tokens that stand, as it measures them.

    At masked positions these are the tokens of the best text that agrees with the state. A token
    that stands is compared with the best one that may stand there while all others stay, where a
    rule revises.
    """
    grammar, classes, scores, probability = spec.grammar, step.classes, step.here, step.probability
    if grammar is None:
        return step
    assert classes is not None
    free, scored, text = _free(state), scores.token >= 0, state.constraint
    assert text is not None
    values, rows = _values(classes, scored), ~state.done
    others = spec.rule.revises or grammar.confidence == "allowed"
    found = reach(grammar, text, state.tokens, ~free, values, scored, rows, alternatives=others)
    chosen, log_total = found.classes, classes.log_sum_exp
    if found.allowed is not None:
        alone = jnp.where(found.allowed, values, -jnp.inf).argmax(axis=-1).astype(jnp.int32)
        chosen = jnp.where(free, chosen, alone)
        if classes.mass is not None:
            mass = jnp.where(found.allowed, classes.mass, -jnp.inf)
            log_total = jax.nn.logsumexp(mass, axis=-1)
    logit = _of(chosen, classes.logits)
    if classes.mass is not None:  # ends stand for each other
        logit = jnp.where(chosen == grammar.end_class, _of(chosen, classes.mass), logit)
    confidence = jnp.exp(jnp.minimum(logit - log_total, 0))
    confidence = jnp.where(jnp.isfinite(scores.confidence), confidence, scores.confidence)
    token = _tokens(grammar, classes, chosen)
    if probability is not None and classes.mass is not None:
        probability = jnp.minimum(probability * jnp.exp(classes.log_sum_exp - log_total), 1)
    inside = scored & (state.positions >= text.begin[:, None])
    said = scores._replace(
        token=jnp.where(inside, token, scores.token),
        confidence=jnp.where(inside, confidence, scores.confidence).astype(scores.confidence.dtype),
    )
    return step._replace(here=said, probability=probability)


def commit_forced(spec: StepSpec, state: DecodeState) -> DecodeState:
    """Returns the canvas with the tokens that have no alternative, where confidence is over what is
    allowed: no forward could say anything else of them."""
    grammar, text = spec.grammar, state.constraint
    if grammar is None or text is None or grammar.confidence == "raw":
        return state
    free = _free(state)
    nothing = jnp.zeros((*free.shape, grammar.n_classes), jnp.float32)
    rows, tokens = ~state.done, state.tokens
    found = reach(grammar, text, tokens, ~free, nothing, free, rows, alternatives=True)
    assert found.allowed is not None
    kind = found.allowed.argmax(axis=-1)
    alone = (found.allowed.sum(axis=-1) == 1) & grammar.single[kind]
    alone &= state.masked & ~state.done[:, None]
    tokens = jnp.where(alone, grammar.representative[kind], state.tokens)
    confidence = jnp.where(alone, jnp.float32(1), state.confidence)
    return state._replace(tokens=tokens, confidence=confidence).with_stable(alone)


def start_constrained(spec: StepSpec, state: DecodeState) -> DecodeState:
    """Returns a canvas before its first forward, with the tokens that need none."""
    state = commit_forced(spec, state)
    return stop_at_eos(spec, advance(spec, state, ~state.done, None))


def hold_to_text(
    grammar: Grammar, before: DecodeState, after: DecodeState, said: StepScores
) -> DecodeState:
    """Returns the canvas after a decision, of which all agrees with one text.

    That text has as many of the decision's tokens as one can. Where it has another one, a token
    that stood before stands again, and a mask gets the text's token; or it stays one, where this
    forward did not score it. What became a mask is one.
    """
    was_free, text, classes, scored = (
        _free(before),
        before.constraint,
        said.classes,
        said.here.token >= 0,
    )
    assert text is not None and classes is not None
    changed = ~_free(after) & (was_free | (before.tokens != after.tokens))
    kinds = jnp.arange(grammar.n_classes, dtype=jnp.int32)[None, None, :]
    wanted = (kinds == grammar.class_of[after.tokens][..., None]) & changed[..., None]
    stood = (kinds == grammar.class_of[before.tokens][..., None]) & ~was_free[..., None]
    values = _values(classes, scored & (was_free | ~changed))
    values += jnp.where(wanted, jnp.where(was_free, _COMMITTED, _REPLACED)[..., None], 0)
    one_of_two = (changed & ~was_free)[..., None]
    values = jnp.where(one_of_two & ~wanted & ~stood, -jnp.inf, values)
    fixed, weighed, rows = ~_free(after) & ~changed, changed | scored, ~before.done
    found = reach(grammar, text, after.tokens, fixed, values, weighed, rows, alternatives=False)
    agrees = grammar.class_of[after.tokens] == found.classes
    agrees |= ~changed | before.done[:, None] | (after.positions < text.begin[:, None])
    other = ~agrees & was_free & scored
    undone = ~agrees & ~other
    confidence = jnp.exp(_of(found.classes, classes.logits) - classes.log_sum_exp)
    confidence = jnp.where(other, confidence.astype(after.confidence.dtype), after.confidence)
    tokens = jnp.where(other, _tokens(grammar, classes, found.classes), after.tokens)
    return after._replace(
        tokens=jnp.where(undone, before.tokens, tokens),
        status=jnp.where(undone, before.status, after.status),
        confidence=jnp.where(undone, before.confidence, confidence),
        filled=jnp.where(~agrees, before.filled, after.filled),
    )


def _free(state: DecodeState) -> Bool[Array, "B L"]:
    """Returns the masks, and what is behind each row's end: both may become anything."""
    return state.masked | (state.positions >= state.end[:, None])


def _values(classes: ClassScores, scored: Bool[Array, "B L"]) -> Float[Array, "B L G"]:
    """Returns the log-probability of each class's best id, where positions are scored; else 0."""
    values = classes.noisy - classes.log_sum_exp[..., None]
    values = jnp.where(jnp.isfinite(values), values, _LOWEST).astype(jnp.float32)
    return jnp.where(scored[..., None], values, 0)


def _tokens(grammar: Grammar, classes: ClassScores, chosen: Int[Array, "B L"]) -> Int[Array, "B L"]:
    ids = _of(chosen, classes.ids)
    return jnp.where(ids >= 0, ids, grammar.representative[chosen])


def _of(chosen: Int[Array, "B L"], values: Array) -> Array:
    return jnp.take_along_axis(values, chosen[..., None], axis=-1)[..., 0]
