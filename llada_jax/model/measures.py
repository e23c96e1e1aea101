"""What a rule may ask of the head beside the scores, measured in the same pass of the vocabulary.

Each part is a running statistic of the logits of one chunk after another, as the softmax in
`head` is. What is not asked is None, and no operation of the program.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from llada_jax.model.head import (
    RunningScores,
    ScoreRules,
    VocabId,
    absorb_chunk,
    finish_scores,
    ids_in,
    over_vocabulary,
    start_scores,
    without,
)
from llada_jax.model.params import ModelParams
from llada_jax.types import Asked, HeadOut, Measured


class Best(NamedTuple):
    """The best ids so far, and their logits."""

    ids: Int[Array, "B C k"]
    logits: Float[Array, "B C k"]


class Divergence(NamedTuple):
    """Running sums of the Kullback-Leibler divergence from the distribution of a step before."""

    highest: Float[Array, "B C"]  # of the previous logits
    total: Float[Array, "B C"]  # sum of exp(previous logit - highest)
    moved: Float[Array, "B C"]  # sum of exp(logit - first) * (logit - previous logit)


class RunningHead(NamedTuple):
    """All statistics of the vocabulary seen so far."""

    scores: RunningScores
    top: Best | None
    listed: Float[Array, "B C K"] | None
    classes: Best | None
    divergence: Divergence | None


def measure_rows(
    params: ModelParams,
    hidden: Float[Array, "B C D"],
    noise_keys: Key[Array, "B C"] | None,
    asked: Asked,
    rules: ScoreRules,
) -> HeadOut:
    """Returns what `score_rows` does, and what is asked beside it, from one pass.

    All but the sampled token is of the distribution that confidences are of: without noise, with
    what is `added`, without what `rules` forbid or discount.
    """

    def absorb(seen: RunningHead, logits: Array, start: VocabId) -> RunningHead:
        return absorb_head(seen, logits, start, noise_keys, asked, rules)

    rows, running = start_head(hidden, asked, rules)
    return finish_head(over_vocabulary(params, rows, rules, absorb, running))


def start_head(
    hidden: Float[Array, "B C D"], asked: Asked, rules: ScoreRules
) -> tuple[Float[Array, "B X D"], RunningHead]:
    """Returns the states whose logits are absorbed, those of the step before behind the others, and
    statistics of no vocabulary at all."""
    shape, dtype = hidden.shape[:2], jnp.dtype(rules.confidence_dtype)
    scores = start_scores(shape, dtype)

    def lowest(*sizes: int) -> Float[Array, "..."]:
        return jnp.full(sizes, -jnp.inf, dtype)

    def best(count: int) -> Best | None:
        nothing = jnp.full((*shape, count), -1, jnp.int32)
        return Best(nothing, lowest(*shape, count)) if count else None

    listed = None if asked.listed is None else lowest(*asked.listed.shape)
    running = RunningHead(scores, best(asked.top_k), listed, best(asked.n_classes), None)
    if asked.previous is None:
        return hidden, running
    zero = jnp.zeros(shape, dtype)
    running = running._replace(divergence=Divergence(scores.first, zero, zero))
    return jnp.concatenate([hidden, asked.previous.astype(hidden.dtype)], axis=1), running


def absorb_head(
    seen: RunningHead,
    logits: Float[Array, "B X chunk"],
    start: VocabId,
    noise_keys: Key[Array, "B C"] | None,
    asked: Asked,
    rules: ScoreRules,
) -> RunningHead:
    """Returns the statistics with one more chunk of the vocabulary, whose first id is `start`."""
    never, count = (*rules.forbidden, *rules.discounted), seen.scores.token.shape[1]
    previous = without(logits[:, count:], never, start)
    logits = _with_added(logits[:, :count], asked, start)
    scores = absorb_chunk(seen.scores, logits, start, noise_keys, rules)
    logits = without(logits, never, start)
    top, listed, classes, divergence = seen[1:]
    if top is not None:
        top = _best(top, logits, start)
    if listed is not None and asked.listed is not None:
        at = _inside(asked.listed, start, logits.shape[-1])
        found = jnp.take_along_axis(logits, jnp.minimum(at, logits.shape[-1] - 1), axis=-1)
        listed = jnp.where(at < logits.shape[-1], found, listed)
    if classes is not None and asked.class_of is not None:
        of_chunk = jax.lax.dynamic_slice_in_dim(asked.class_of, start, logits.shape[-1])
        classes = _best_of_classes(classes, logits, start, of_chunk)
    if divergence is not None:
        divergence = _diverged(divergence, logits, previous, seen.scores.first, scores.first)
    return RunningHead(scores, top, listed, classes, divergence)


def _with_added(
    logits: Float[Array, "B C chunk"], asked: Asked, start: VocabId
) -> Float[Array, "B C chunk"]:
    if asked.listed is None or asked.added is None:
        return logits
    at = _inside(asked.listed, start, logits.shape[-1])
    batch = jnp.arange(logits.shape[0])[:, None, None]
    row = jnp.arange(logits.shape[1])[:, None]
    return logits.at[batch, row, at].add(asked.added.astype(logits.dtype), mode="drop")


def _inside(ids: Int[Array, "B C K"], start: VocabId, size: int) -> Int[Array, "B C K"]:
    """Returns the ids' places in a chunk; `size` where they are not in it."""
    at = ids - start
    return jnp.where((at >= 0) & (at < size), at, size)


def _best(seen: Best, logits: Float[Array, "B C chunk"], start: VocabId) -> Best:
    ids = jnp.broadcast_to(ids_in(logits) + start, logits.shape)
    both = Best(*(jnp.concatenate(each, axis=-1) for each in zip(seen, (ids, logits), strict=True)))
    highest, at = jax.lax.top_k(both.logits, seen.ids.shape[-1])
    return Best(jnp.take_along_axis(both.ids, at, axis=-1), highest)


def _best_of_classes(
    seen: Best, logits: Float[Array, "B C chunk"], start: VocabId, of_chunk: Int[Array, " chunk"]
) -> Best:
    size = logits.shape[-1]
    best = jnp.full(seen.ids.shape, -jnp.inf, logits.dtype).at[..., of_chunk].max(logits)
    wins = (logits == best[..., of_chunk]) & (logits > -jnp.inf)
    first = jnp.full(seen.ids.shape, size, jnp.int32)
    first = first.at[..., of_chunk].min(jnp.where(wins, ids_in(logits), size))
    better = best > seen.logits
    return Best(jnp.where(better, first + start, seen.ids), jnp.where(better, best, seen.logits))


def _diverged(
    seen: Divergence,
    logits: Float[Array, "B C chunk"],
    previous: Float[Array, "B C chunk"],
    first_before: Float[Array, "B C"],
    first: Float[Array, "B C"],
) -> Divergence:
    highest = jnp.maximum(seen.highest, previous.max(axis=-1))
    total = jnp.exp(previous - highest[..., None]).sum(axis=-1)
    share = jnp.exp(logits - first[..., None])
    moved = jnp.where(share > 0, share * (logits - previous), 0).sum(axis=-1)
    return Divergence(
        highest,
        seen.total * jnp.exp(seen.highest - highest) + total,
        seen.moved * jnp.exp(first_before - first) + moved,
    )


def finish_head(seen: RunningHead) -> HeadOut:
    """Returns the scores and measures, once every chunk was absorbed."""
    scores, divergence = seen.scores, None
    log_sum_exp = scores.first + jnp.log(scores.total)
    if seen.divergence is not None:
        highest, total, moved = seen.divergence
        before = highest + jnp.log(total)
        divergence = jnp.maximum(moved / scores.total - log_sum_exp + before, 0)
    top, classes = seen.top or (None, None), seen.classes or (None, None)
    return HeadOut(
        finish_scores(scores), Measured(log_sum_exp, *top, seen.listed, *classes, divergence)
    )
