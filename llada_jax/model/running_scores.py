"""The softmax of a vocabulary that passes in chunks: a running maximum, and rescaled sums."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from llada_jax.model.score_rules import ScoreRules, VocabId
from llada_jax.types import Scores

GROUP = 64
"""Logits of a chunk that are compared at once."""


class RunningScores(NamedTuple):
    """Softmax statistics of the vocabulary seen so far, per row."""

    best: Float[Array, "B C"]  # of the logits with noise
    token: Int[Array, "B C"]
    token_logit: Float[Array, "B C"]
    first: Float[Array, "B C"]  # the two highest logits that count
    second: Float[Array, "B C"]
    total: Float[Array, "B C"]  # sum of exp(logit - first)
    weighted: Float[Array, "B C"]  # sum of exp(logit - first) * (logit - first)


def start_scores(shape: tuple[int, ...], dtype: jnp.dtype) -> RunningScores:
    """Returns statistics of no vocabulary at all, for `shape` rows."""
    lowest = jnp.full(shape, jnp.finfo(dtype).min, dtype)
    zero = jnp.zeros(shape, dtype)
    return RunningScores(lowest, jnp.zeros(shape, jnp.int32), lowest, lowest, lowest, zero, zero)


def absorb_chunk(
    seen: RunningScores,
    logits: Float[Array, "B C chunk"],
    start: VocabId,
    noise_keys: Key[Array, "B C"] | None,
    rules: ScoreRules,
) -> RunningScores:
    """Returns the statistics with one more chunk of the vocabulary, whose first id is `start`."""
    logits = without(logits, rules.forbidden, start)
    noise = rules.noise(noise_keys, start, logits)
    noisy = logits if noise is None else logits + noise
    counted = without(logits, rules.discounted, start)

    best, index = _first_maximum(noisy)
    token_logit = jnp.take_along_axis(counted, index[..., None], axis=-1)[..., 0]
    better = best > seen.best
    top, top_index = _first_maximum(counted)
    runner_up = jnp.where(ids_in(counted) == top_index[..., None], -jnp.inf, counted).max(axis=-1)
    first = jnp.maximum(seen.first, top)
    second = jnp.maximum(jnp.minimum(seen.first, top), jnp.maximum(seen.second, runner_up))

    shifted = counted - first[..., None]
    share = jnp.exp(shifted)
    rescale = jnp.exp(seen.first - first)
    moved = seen.weighted + seen.total * jnp.where(rescale > 0, seen.first - first, 0)
    return RunningScores(
        best=jnp.where(better, best, seen.best),
        token=jnp.where(better, index + start, seen.token),
        token_logit=jnp.where(better, token_logit, seen.token_logit),
        first=first,
        second=second,
        total=seen.total * rescale + share.sum(axis=-1),
        weighted=moved * rescale + jnp.where(share > 0, share * shifted, 0).sum(axis=-1),
    )


def ids_in(logits: Float[Array, "B C chunk"]) -> Int[Array, " chunk"]:
    """Returns the ids of a chunk, counted from its first one."""
    return jnp.arange(logits.shape[-1], dtype=jnp.int32)


def _first_maximum(
    logits: Float[Array, "B C chunk"],
) -> tuple[Float[Array, "B C"], Int[Array, "B C"]]:
    """Returns the highest logit and its lowest index; looks twice at one group's logits only."""
    size = logits.shape[-1]
    if size % GROUP:
        return _first_in(logits)
    groups = logits.reshape(*logits.shape[:-1], size // GROUP, GROUP)
    best, group = _first_in(groups.max(axis=-1))
    chosen = jnp.take_along_axis(groups, group[..., None, None], axis=-2)[..., 0, :]
    return best, group * GROUP + _first_in(chosen)[1]


def _first_in(logits: Float[Array, "B C n"]) -> tuple[Float[Array, "B C"], Int[Array, "B C"]]:
    """Runs two plain reductions, which CPUs vectorise as they do not argmax and top_k."""
    best = logits.max(axis=-1)
    index = jnp.where(logits == best[..., None], ids_in(logits), logits.shape[-1]).min(axis=-1)
    return best, index


def without(
    logits: Float[Array, "B C chunk"], ids: tuple[int, ...], start: VocabId = 0
) -> Float[Array, "B C chunk"]:
    """Returns the logits with -inf for some ids."""
    for token in ids:
        logits = jnp.where(ids_in(logits) == token - start, -jnp.inf, logits)
    return logits


def finish_scores(seen: RunningScores) -> Scores:
    """Returns the scores, once every chunk was absorbed."""
    confidence = jnp.exp(seen.token_logit - seen.first) / seen.total
    entropy = jnp.log(seen.total) - seen.weighted / seen.total
    margin = (1 - jnp.exp(seen.second - seen.first)) / seen.total
    return Scores(seen.token, confidence, entropy, margin)
