"""The head of the model: vocabulary-wide work, streamed in chunks.

At V = 126,464 the head is as expensive as two layers, and one float32 array [R, V] larger than the
key-value cache of the same rows. So the vocabulary passes in chunks through a running softmax
(running maximum, rescaled sums): nothing of size [R, V] is ever held.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from llada_jax.model.params import ModelParams
from llada_jax.model.quantize import QuantArray, Weight, linear
from llada_jax.model.running_scores import absorb_chunk, finish_scores, start_scores
from llada_jax.model.score_rules import ScoreRules, VocabId
from llada_jax.types import Scores

Running = TypeVar("Running")


def head_weight(params: ModelParams) -> Weight:
    """Returns the head's matrix [V, D]: its own, or the embedding."""
    return params.embedding if params.head is None else params.head


def logits_of(params: ModelParams, hidden: Float[Array, "B R D"]) -> Float[Array, "B R V"]:
    """Returns all logits in float32, for training and tests; decoding streams them instead."""
    return _chunk_logits(hidden, head_weight(params))


def _chunk_logits(hidden: Float[Array, "B C D"], weight: Weight) -> Float[Array, "B C chunk"]:
    if isinstance(weight, QuantArray):
        return linear(hidden.astype(jnp.float32), weight)
    return jnp.einsum("bcd,vd->bcv", hidden, weight, preferred_element_type=jnp.float32)


def score_rows(
    params: ModelParams,
    hidden: Float[Array, "B C D"],
    noise_keys: Key[Array, "B C"] | None,
    rules: ScoreRules = ScoreRules(),
) -> Scores:
    """Returns each row's predicted token and its probability, and the entropy and margin.

    Args:
      hidden: states after the final norm.
      noise_keys: one PRNG key a row, for temperature > 0 (Gumbel-max sampling); else None.
      rules: see `ScoreRules`. float64 needs `jax.enable_x64`.

    Confidence, entropy (nats) and margin (probability of the best minus the second best) are of
    the distribution without noise, in `rules.confidence_dtype`. The lowest id wins ties.
    """
    absorb = partial(absorb_chunk, noise_keys=noise_keys, rules=rules)
    running = start_scores(hidden.shape[:2], jnp.dtype(rules.confidence_dtype))
    return finish_scores(over_vocabulary(params, hidden, rules, absorb, running))


def over_vocabulary(
    params: ModelParams,
    hidden: Float[Array, "B C D"],
    rules: ScoreRules,
    absorb: Callable[[Running, Array, VocabId], Running],
    running: Running,
) -> Running:
    """Returns running statistics after the logits of every chunk, [B, C, chunk] from an id on."""
    size = params.embedding.shape[0]
    return over_ids(head_weight(params), hidden, rules, absorb, running, 0, size)


def over_ids(
    weight: Weight,
    hidden: Float[Array, "B C D"],
    rules: ScoreRules,
    absorb: Callable[[Running, Array, VocabId], Running],
    running: Running,
    first: VocabId,
    count: int,
    row: VocabId | None = None,
) -> Running:
    """Returns running statistics after `count` ids from `first` on, which the head's matrix has in
    rows from `row` on (default: the same)."""
    row = first if row is None else row

    def with_chunk(seen: Running, done: VocabId, size: int) -> Running:
        part = jax.tree.map(
            lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, row + done, size), weight
        )
        logits = _chunk_logits(hidden, part).astype(rules.confidence_dtype)
        return absorb(seen, logits, first + done)

    full, rest = divmod(count, rules.chunk)
    if full:
        # A loop of the compiled program. Of chunks that are written out one by one XLA slices the
        # weights first, all of them, and holds a second copy of the head.
        running = jax.lax.fori_loop(
            0, full, lambda i, seen: with_chunk(seen, i * rules.chunk, rules.chunk), running
        )
    return with_chunk(running, full * rules.chunk, rest) if rest else running


def score_greedily(
    chunks: Sequence[Weight], hidden: Float[Array, "R D"], penalty: Float[Array, " V"]
) -> tuple[Int[Array, " R"], Float[Array, " R"]]:
    """Returns each row's most probable id and its probability, by operations that NPUs have.

    Args:
      chunks: the head's matrix [V, D] in pieces of its rows; one piece's logits exist at a time.
      penalty: added to the logits; a large negative number forbids an id.

    `score_rows` with every rule off gives the same. There argmax is two plain reductions, which
    XLA vectorises; NPU compilers know argmax.
    """
    n_rows = hidden.shape[0]
    first = jnp.full(n_rows, jnp.finfo(jnp.float32).min)
    total, token, start = jnp.zeros(n_rows), jnp.zeros(n_rows, jnp.int32), 0
    for weight in chunks:
        stop = start + jax.tree.leaves(weight)[0].shape[0]
        logits = linear(hidden, weight) + penalty[start:stop]
        top = logits.max(axis=-1)
        index = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        token = jnp.where(top > first, index + start, token)
        highest = jnp.maximum(first, top)
        share = jnp.exp(logits - highest[:, None]).sum(axis=-1)
        total = total * jnp.exp(first - highest) + share
        first, start = highest, stop
    return token, 1 / total
