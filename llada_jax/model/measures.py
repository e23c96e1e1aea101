"""What a rule may ask of the head beside the scores, measured in the same pass of the vocabulary.

Each part is a running statistic of the logits of one chunk after another, as the softmax in
`head` is. What is not asked is no operation of the program.
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
    over_vocabulary,
    start_scores,
    without,
)
from llada_jax.model.params import ModelParams
from llada_jax.types import Asked, HeadOut, Measured


class Divergence(NamedTuple):
    """Running sums of the Kullback-Leibler divergence from the distribution of a step before."""

    highest: Float[Array, "B C"]  # of the previous logits
    total: Float[Array, "B C"]  # sum of exp(previous logit - highest)
    moved: Float[Array, "B C"]  # sum of exp(logit - first) * (logit - previous logit)


class RunningMeasures(NamedTuple):
    """Statistics of the vocabulary seen so far, per row; None where they are not asked."""

    top: tuple[Int[Array, "B C k"], Float[Array, "B C k"]] | None  # ids and logits
    listed: Float[Array, "B C K"] | None
    classes: tuple[Int[Array, "B C G"], Float[Array, "B C G"]] | None
    divergence: Divergence | None


class RunningHead(NamedTuple):
    """All statistics of the vocabulary seen so far."""

    scores: RunningScores
    measures: RunningMeasures


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
    running = RunningHead(start_scores(shape, dtype), start_measures(shape, dtype, asked))
    if asked.previous is None:
        return hidden, running
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
    never, count, previous = (*rules.forbidden, *rules.discounted), seen.scores.token.shape[1], None
    if asked.previous is not None:
        previous = without(logits[:, count:], never, start)
    logits = with_added(logits[:, :count], asked, start)
    scores = absorb_chunk(seen.scores, logits, start, noise_keys, rules)
    first = seen.scores.first, scores.first
    logits = without(logits, never, start)
    measures = absorb_measures(seen.measures, logits, previous, start, first, asked)
    return RunningHead(scores, measures)


def finish_head(seen: RunningHead) -> HeadOut:
    """Returns the scores and measures, once every chunk was absorbed."""
    scores = seen.scores
    measured = finish_measures(seen.measures, scores.first, scores.total)
    return HeadOut(finish_scores(scores), measured)


def start_measures(shape: tuple[int, ...], dtype: jnp.dtype, asked: Asked) -> RunningMeasures:
    """Returns statistics of no vocabulary at all, for `shape` rows."""

    def best(count: int) -> tuple[Array, Array] | None:
        if not count:
            return None
        many = (*shape, count)
        return jnp.full(many, -1, jnp.int32), jnp.full(many, -jnp.inf, dtype)

    zero = jnp.zeros(shape, dtype)
    lowest = jnp.full(shape, jnp.finfo(dtype).min, dtype)
    return RunningMeasures(
        best(asked.top_k),
        None if asked.listed is None else jnp.full(asked.listed.shape, -jnp.inf, dtype),
        best(asked.n_classes),
        None if asked.previous is None else Divergence(lowest, zero, zero),
    )


def with_added(
    logits: Float[Array, "B C chunk"], asked: Asked, start: VocabId
) -> Float[Array, "B C chunk"]:
    """Returns the logits with what a rule adds to those of its listed tokens."""
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


def absorb_measures(
    seen: RunningMeasures,
    logits: Float[Array, "B C chunk"],
    previous: Float[Array, "B C chunk"] | None,
    start: VocabId,
    first: tuple[Float[Array, "B C"], Float[Array, "B C"]],
    asked: Asked,
) -> RunningMeasures:
    """Returns the statistics with one more chunk of the vocabulary, whose first id is `start`.

    Args:
      logits: those that count; -inf for ids that are never predicted.
      previous: those of `asked.previous`.
      first: the highest logit before and after this chunk.
    """
    top, listed, classes, divergence = seen
    ids = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    if top is not None:
        known, values = top
        everything = jnp.concatenate([values, logits], axis=-1)
        chunk_ids = jnp.broadcast_to(ids + start, logits.shape)
        every_id = jnp.concatenate([known, chunk_ids], axis=-1)
        values, at = jax.lax.top_k(everything, asked.top_k)
        top = jnp.take_along_axis(every_id, at, axis=-1), values
    if asked.listed is not None:
        at = _inside(asked.listed, start, logits.shape[-1])
        found = jnp.take_along_axis(logits, jnp.minimum(at, logits.shape[-1] - 1), axis=-1)
        listed = jnp.where(at < logits.shape[-1], found, listed)
    if classes is not None:
        classes = _best_of_classes(classes, logits, start, asked)
    if divergence is not None:
        assert previous is not None
        divergence = _diverged(divergence, logits, previous, first)
    return RunningMeasures(top, listed, classes, divergence)


def _best_of_classes(
    seen: tuple[Array, Array], logits: Float[Array, "B C chunk"], start: VocabId, asked: Asked
) -> tuple[Int[Array, "B C G"], Float[Array, "B C G"]]:
    ids, values = seen
    size = logits.shape[-1]
    assert asked.class_of is not None
    of_chunk = jax.lax.dynamic_slice_in_dim(asked.class_of, start, size)
    empty = jnp.full(ids.shape, -jnp.inf, logits.dtype)
    best = empty.at[..., of_chunk].max(logits)
    wins = (logits == best[..., of_chunk]) & (logits > -jnp.inf)
    index = jnp.where(wins, jnp.arange(size, dtype=jnp.int32), size)
    lowest = jnp.full(ids.shape, size, jnp.int32).at[..., of_chunk].min(index)
    better = best > values
    return jnp.where(better, lowest + start, ids), jnp.where(better, best, values)


def _diverged(
    seen: Divergence,
    logits: Float[Array, "B C chunk"],
    previous: Float[Array, "B C chunk"],
    first: tuple[Float[Array, "B C"], Float[Array, "B C"]],
) -> Divergence:
    highest = jnp.maximum(seen.highest, previous.max(axis=-1))
    total = jnp.exp(previous - highest[..., None]).sum(axis=-1)
    share = jnp.exp(logits - first[1][..., None])
    moved = jnp.where(share > 0, share * (logits - previous), 0).sum(axis=-1)
    return Divergence(
        highest,
        seen.total * jnp.exp(seen.highest - highest) + total,
        seen.moved * jnp.exp(first[0] - first[1]) + moved,
    )


def finish_measures(
    seen: RunningMeasures, first: Float[Array, "B C"], total: Float[Array, "B C"]
) -> Measured:
    """Returns what was measured, once every chunk was absorbed.

    Args:
      first: the highest logit.
      total: sum of exp(logit - first).
    """
    log_sum_exp = first + jnp.log(total)
    divergence = None
    if seen.divergence is not None:
        before = seen.divergence.highest + jnp.log(seen.divergence.total)
        divergence = jnp.maximum(seen.divergence.moved / total - log_sum_exp + before, 0)
    top_ids, top_logits = seen.top or (None, None)
    class_ids, class_logits = seen.classes or (None, None)
    return Measured(
        log_sum_exp, top_ids, top_logits, seen.listed, class_ids, class_logits, divergence
    )
