"""A step under a constraint: predictions and decisions are projected onto allowed texts.

At masked positions a rule observes the tokens of the best allowed text that agrees with the canvas,
so whatever it commits of them can be completed. If a rule may change tokens, its decision is
projected onto one allowed text, the one that keeps as much of the decision as possible.
"""

from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.constraint.reach import Grammar, reach
from llada_jax.sampler.record import ClassScores, StepScores
from llada_jax.sampler.spec import StepSpec
from llada_jax.sampler.state import DecodeState, put
from llada_jax.types import HeadOut, HeadRequest

_LOWEST = -1e4  # log-probability of a class without a possible id
# Bonus of a token that the rule decided, in comparisons of texts by log-probability: keeping a
# commit comes before keeping a replacement, and both before the model's preference.
_COMMITTED, _REPLACED = 200.0, 20.0


def with_classes(spec: StepSpec, request: HeadRequest | None) -> HeadRequest:
    """Returns the request to the head, with the classes of the constraint."""
    grammar = spec.grammar
    assert grammar is not None
    return replace(
        request or HeadRequest(),
        n_classes=grammar.n_classes,
        class_of=grammar.class_of,
        class_mass=grammar.confidence == "allowed",
        class_samples=spec.config.temperature > 0,
    )


def class_scores(at: Int[Array, "B Q"], head: HeadOut, length: int) -> ClassScores:
    """Scatters the head's scores of classes to the positions of a canvas of `length`."""
    extras = cast(Any, head.measured)
    noisy = extras.class_logits if extras.class_noisy is None else extras.class_noisy
    scores = ClassScores(
        extras.class_ids, extras.class_logits, noisy, extras.class_mass, extras.log_sum_exp
    )
    return jax.tree.map(lambda array: put(at, array, length), scores)


def constrain_scores(spec: StepSpec, state: DecodeState, step: StepScores) -> StepScores:
    """Returns the scores of a step for tokens that the constraint allows.

    At masked positions these are the tokens of the best allowed text that agrees with the canvas.
    If the rule revises, a committed token is compared with the best token that is allowed in its
    place while all others stay.
    """
    grammar, classes, scores, probability = spec.grammar, step.classes, step.here, step.probability
    text = state.constraint
    assert grammar is not None and classes is not None and text is not None
    free, scored = _free(state), scores.token >= 0
    values, rows = _values(classes, scored), ~state.done
    others = spec.rule.revises or grammar.confidence == "allowed"
    texts = reach(grammar, text, state.tokens, ~free, values, scored, rows, alternatives=others)
    chosen, log_total = texts.classes, classes.log_sum_exp
    if texts.allowed is not None:
        alone = jnp.where(texts.allowed, values, -jnp.inf).argmax(axis=-1).astype(jnp.int32)
        chosen = jnp.where(free, chosen, alone)
        if classes.mass is not None:
            mass = jnp.where(texts.allowed, classes.mass, -jnp.inf)
            log_total = jax.nn.logsumexp(mass, axis=-1)
    logit = _of(chosen, classes.logits)
    if classes.mass is not None:  # any end id will do
        logit = jnp.where(chosen == grammar.end_class, _of(chosen, classes.mass), logit)
    confidence = jnp.exp(jnp.minimum(logit - log_total, 0))
    confidence = jnp.where(jnp.isfinite(scores.confidence), confidence, scores.confidence)
    token = _tokens(grammar, classes, chosen)
    if probability is not None and classes.mass is not None:
        probability = jnp.minimum(probability * jnp.exp(classes.log_sum_exp - log_total), 1)
    inside = scored & (state.positions >= text.begin[:, None])
    constrained = scores._replace(
        token=jnp.where(inside, token, scores.token),
        confidence=jnp.where(inside, confidence, scores.confidence).astype(scores.confidence.dtype),
    )
    return step._replace(here=constrained, probability=probability, classes=None)


def commit_forced(spec: StepSpec, state: DecodeState) -> DecodeState:
    """Commits the tokens without an alternative, if confidence is measured over allowed tokens.

    No forward could predict anything else there. All tokens of `state` are of one allowed text.
    """
    grammar, text = spec.grammar, state.constraint
    assert grammar is not None and text is not None
    if grammar.confidence == "raw":
        return state
    free = _free(state)
    nothing = jnp.zeros((*free.shape, grammar.n_classes), jnp.float32)
    rows, tokens = ~state.done, state.tokens
    texts = reach(grammar, text, tokens, ~free, nothing, free, rows, alternatives=True)
    assert texts.allowed is not None
    kind = texts.allowed.argmax(axis=-1)
    alone = (texts.allowed.sum(axis=-1) == 1) & grammar.single[kind]
    alone &= state.masked & ~state.done[:, None]
    tokens = jnp.where(alone, grammar.representative[kind], state.tokens)
    confidence = jnp.where(alone, jnp.float32(1), state.confidence)
    return state._replace(tokens=tokens, confidence=confidence).with_stable(alone)


def hold_to_text(
    spec: StepSpec, before: DecodeState, after: DecodeState, raw: StepScores
) -> DecodeState:
    """Projects a decision onto one allowed text, the one that keeps most of its tokens.

    `raw` are the scores without the constraint. If the text has another token than the decision, a
    replaced token is restored; a committed mask gets the text's token, or stays a mask if this
    forward did not score it. Positions that were masked again stay masks.
    """
    was_free, text, classes = _free(before), before.constraint, raw.classes
    scored, grammar = raw.here.token >= 0, spec.grammar
    assert grammar is not None and text is not None and classes is not None
    changed = ~_free(after) & (was_free | (before.tokens != after.tokens))
    kinds = jnp.arange(grammar.n_classes, dtype=jnp.int32)[None, None, :]
    wanted = (kinds == grammar.class_of[after.tokens][..., None]) & changed[..., None]
    stood = (kinds == grammar.class_of[before.tokens][..., None]) & ~was_free[..., None]
    values = _values(classes, scored & (was_free | ~changed))
    values += jnp.where(wanted, jnp.where(was_free, _COMMITTED, _REPLACED)[..., None], 0)
    one_of_two = (changed & ~was_free)[..., None]
    values = jnp.where(one_of_two & ~wanted & ~stood, -jnp.inf, values)
    fixed, weighed, rows = ~_free(after) & ~changed, changed | scored, ~before.done
    texts = reach(grammar, text, after.tokens, fixed, values, weighed, rows, alternatives=False)
    agrees = grammar.class_of[after.tokens] == texts.classes
    agrees |= ~changed | before.done[:, None] | (after.positions < text.begin[:, None])
    other = ~agrees & was_free & scored
    undone = ~agrees & ~other
    confidence = jnp.exp(_of(texts.classes, classes.logits) - classes.log_sum_exp)
    confidence = jnp.where(other, confidence.astype(after.confidence.dtype), after.confidence)
    tokens = jnp.where(other, _tokens(grammar, classes, texts.classes), after.tokens)
    return after._replace(
        tokens=jnp.where(undone, before.tokens, tokens),
        status=jnp.where(undone, before.status, after.status),
        confidence=jnp.where(undone, before.confidence, confidence),
        filled=jnp.where(~agrees, before.filled, after.filled),
    )


def _free(state: DecodeState) -> Bool[Array, "B L"]:
    """Marks masks and positions after the end of each sequence: both may become anything."""
    return state.masked | (state.positions >= state.end[:, None])


def _values(classes: ClassScores, scored: Bool[Array, "B L"]) -> Float[Array, "B L G"]:
    """Returns the log-probability of each class's best id, or 0 if a position was not scored."""
    values = classes.noisy - classes.log_sum_exp[..., None]
    values = jnp.where(jnp.isfinite(values), values, _LOWEST).astype(jnp.float32)
    return jnp.where(scored[..., None], values, 0)


def _tokens(grammar: Grammar, classes: ClassScores, chosen: Int[Array, "B L"]) -> Int[Array, "B L"]:
    ids = _of(chosen, classes.ids)
    return jnp.where(ids >= 0, ids, grammar.representative[chosen])


def _of(chosen: Int[Array, "B L"], values: Array) -> Array:
    return jnp.take_along_axis(values, chosen[..., None], axis=-1)[..., 0]
