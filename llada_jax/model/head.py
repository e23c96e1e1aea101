"""The head of the model: scores of rows, from logits that are streamed in chunks.

At V = 126,464 the head is as expensive as two layers, and one float32 array [R, V] is larger than
the key-value cache of the same rows. So the vocabulary passes in chunks through a running softmax
(running maximum, rescaled sums; Milakov and Gimelshein, arXiv 1805.02867), and no array of size [R,
V] exists.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from llada_jax.config import FloatDtype
from llada_jax.model.params import ModelParams
from llada_jax.model.quantize import QuantArray, Weight, linear
from llada_jax.types import Hidden, NoiseKeys, Scores

Running = TypeVar("Running")
VocabId = int | Int[Array, ""]
GROUP = 64  # logits of a chunk that are compared at once


@dataclass(frozen=True)
class ScoreRules:
    """How logits become predictions and confidences."""

    forbidden: tuple[int, ...] = ()  # ids that are never predicted and have no probability
    discounted: tuple[int, ...] = ()  # ids that may be predicted; their probability counts as 0
    temperature: float = 0.0
    confidence_dtype: FloatDtype = "float32"
    noise_dtype: FloatDtype = "float32"
    chunk: int = 4096
    spread: bool = True  # whether entropy and margin are needed; otherwise backends may give NaN
    anywhere: int | None = None
    """The vocabulary's size, if chunks may begin anywhere, as on a mesh; None if they begin at
    multiples of `chunk`. In both cases noise is keyed by these multiples."""

    @property
    def plain(self) -> bool:
        """Whether `score_greedily` computes all that is needed."""
        greedy = self.temperature == 0 and self.confidence_dtype == "float32"
        return greedy and not self.discounted and not self.spread

    def noise(
        self, keys: Key[Array, "B C"] | None, start: VocabId, logits: Float[Array, "B C chunk"]
    ) -> Float[Array, "B C chunk"] | None:
        """Returns the noise that sampling adds to the logits of a chunk, or None without
        sampling."""
        if keys is None or self.temperature == 0:
            return None
        noise = self._drawn(keys, start, logits.shape[-1])
        return self.temperature * noise.astype(logits.dtype)

    def _drawn(
        self, keys: Key[Array, "B C"], start: VocabId, size: int
    ) -> Float[Array, "B C size"]:
        if self.anywhere is None:
            return gumbel_noise(keys, start, size, self.noise_dtype)
        whole, rest = divmod(self.anywhere, self.chunk)

        def of_chunk(number: VocabId) -> Float[Array, "B C chunk"]:
            noise = gumbel_noise(keys, number * self.chunk, self.chunk, self.noise_dtype)
            last = gumbel_noise(keys, whole * self.chunk, rest, self.noise_dtype)
            last = jnp.pad(last, [(0, 0), (0, 0), (0, self.chunk - rest)])
            return jnp.where(number == whole, last, noise)

        first = start // self.chunk
        both = jnp.concatenate([of_chunk(first), of_chunk(first + 1)], axis=-1)
        return jax.lax.dynamic_slice_in_dim(both, start - first * self.chunk, size, axis=-1)


def gumbel_noise(
    keys: Key[Array, "B C"], start: VocabId, size: int, dtype: FloatDtype
) -> Float[Array, "B C size"]:
    """Draws standard Gumbel noise for the vocabulary ids from `start`, one key a row.

    A float32 uniform number has 2**23 values, not enough if the largest of 126,464 draws decides.
    JAX's mode "high" spends twice the bits, so that the upper tail stays exact to 2**-46.
    """
    draw = partial(jax.random.gumbel, shape=(size,), dtype=jnp.dtype(dtype), mode="high")
    return jax.vmap(jax.vmap(lambda key: draw(jax.random.fold_in(key, start))))(keys)


def head_weight(params: ModelParams) -> Weight:
    """Returns the head's matrix [V, D], which may be the embedding."""
    return params.embedding if params.head is None else params.head


def logits_of(params: ModelParams, hidden: Float[Array, "B R D"]) -> Float[Array, "B R V"]:
    """Returns all logits in float32, for training and tests; decoding streams them instead."""
    return head_logits(hidden, head_weight(params))


def head_logits(hidden: Float[Array, "B C D"], weight: Weight) -> Float[Array, "B C chunk"]:
    """Returns the logits of some rows of the head's matrix in float32."""
    if isinstance(weight, QuantArray):
        return linear(hidden.astype(jnp.float32), weight)
    return jnp.einsum("bcd,vd->bcv", hidden, weight, preferred_element_type=jnp.float32)


def score_rows(
    params: ModelParams, hidden: Hidden, noise_keys: NoiseKeys, rules: ScoreRules = ScoreRules()
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
    return finish_scores(over_ids(head_weight(params), hidden, rules, absorb, running))


def over_ids(
    weight: Weight,
    hidden: Float[Array, "B C D"],
    rules: ScoreRules,
    absorb: Callable[[Running, Array, VocabId], Running],
    running: Running,
    first: VocabId = 0,
    count: int | None = None,
    row: VocabId | None = None,
) -> Running:
    """Returns running statistics after the logits [B, C, chunk] of every chunk.

    Args:
      absorb: Adds the logits of a chunk, given its first id, to the statistics.
      first: The first id, and `count` the number of ids (default: all).
      row: The row of the first id in the head's matrix (default: `first`).
    """
    row = first if row is None else row
    n_ids: int = jax.tree.leaves(weight)[0].shape[0] if count is None else count

    def with_chunk(seen: Running, done: VocabId, size: int) -> Running:
        part = jax.tree.map(
            lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, row + done, size), weight
        )
        logits = head_logits(hidden, part).astype(rules.confidence_dtype)
        return absorb(seen, logits, first + done)

    full, rest = divmod(n_ids, rules.chunk)
    if full:
        # A loop, because XLA would slice the weights of unrolled chunks first, all at once, and so
        # hold a second copy of the head.
        running = jax.lax.fori_loop(
            0, full, lambda i, seen: with_chunk(seen, i * rules.chunk, rules.chunk), running
        )
    return with_chunk(running, full * rules.chunk, rest) if rest else running


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
    noise_keys: NoiseKeys,
    rules: ScoreRules,
) -> RunningScores:
    """Returns the statistics with one more chunk of the vocabulary, from id `start` on."""
    logits = without(logits, rules.forbidden, start)
    noise = rules.noise(noise_keys, start, logits)
    noisy = logits if noise is None else logits + noise
    counted = without(logits, rules.discounted, start)

    best, index = first_maximum(noisy)
    token_logit = jnp.take_along_axis(counted, index[..., None], axis=-1)[..., 0]
    better = best > seen.best
    top, top_index = first_maximum(counted)
    is_top = ids_in(counted)[None, None, :] == top_index[..., None]
    runner_up = jnp.where(is_top, -jnp.inf, counted).max(axis=-1)
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


def first_maximum(
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
    """Runs two plain reductions, which XLA vectorises on CPUs, unlike argmax and top_k."""
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


def merged_scores(one: RunningScores, other: RunningScores) -> RunningScores:
    """Returns the statistics of two parts of the vocabulary; `one` has the lower ids."""
    better = other.best > one.best
    first = jnp.maximum(one.first, other.first)
    second = jnp.maximum(jnp.minimum(one.first, other.first), jnp.maximum(one.second, other.second))
    total = weighted = jnp.zeros_like(first)
    for part in (one, other):
        rescale = jnp.exp(part.first - first)
        moved = part.weighted + part.total * jnp.where(rescale > 0, part.first - first, 0)
        total, weighted = total + part.total * rescale, weighted + moved * rescale
    chosen = jax.tree.map(partial(jnp.where, better), other[:3], one[:3])  # with their logits
    return RunningScores(chosen[0], chosen[1], chosen[2], first, second, total, weighted)


def finish_scores(seen: RunningScores) -> Scores:
    """Returns the scores, once every chunk was absorbed."""
    confidence = jnp.exp(seen.token_logit - seen.first) / seen.total
    entropy = jnp.log(seen.total) - seen.weighted / seen.total
    margin = (1 - jnp.exp(seen.second - seen.first)) / seen.total
    return Scores(seen.token, confidence, entropy, margin)


def score_greedily(
    chunks: Sequence[Weight], hidden: Float[Array, "R D"], penalty: Float[Array, " V"]
) -> tuple[Int[Array, " R"], Float[Array, " R"]]:
    """Returns each row's most probable id and its probability, by operations that NPUs have.

    Args:
      chunks: The head's matrix [V, D] in pieces of its rows; one piece's logits exist at a time.
      penalty: added to the logits; a large negative number forbids an id.

    The result equals `score_rows` with all rules off. That function computes argmax by two
    plain reductions, which XLA vectorises; NPU compilers support argmax.
    """
    n_rows = hidden.shape[0]
    first = jnp.full(n_rows, jnp.finfo(jnp.float32).min)
    total, token, start = jnp.zeros(n_rows), jnp.zeros(n_rows, jnp.int32), 0
    for weight in chunks:
        stop = start + jax.tree.leaves(weight)[0].shape[0]
        logits = linear(hidden, weight) + penalty[None, start:stop]
        top = logits.max(axis=-1)
        index = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        token = jnp.where(top > first, index + start, token)
        highest = jnp.maximum(first, top)
        share = jnp.exp(logits - highest[:, None]).sum(axis=-1)
        total = total * jnp.exp(first - highest) + share
        first, start = highest, stop
    return token, 1 / total
