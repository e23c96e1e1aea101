"""Measurements of the head that a rule may request, from the same pass over the vocabulary.

Each part is a running statistic of one chunk of logits after another, like the softmax in `head`:
the most probable ids, logits of listed ids, the best id of each class, and the divergence from an
earlier distribution. Parts that are not requested are None and add no operation to the program.
"""

from dataclasses import replace
from functools import partial, reduce
from math import gcd, lcm
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from llada_jax.model import head
from llada_jax.model.head import RunningScores, ScoreRules, VocabId
from llada_jax.model.params import ModelParams
from llada_jax.on_mesh import MODEL
from llada_jax.types import HeadExtras, HeadOut, HeadRequest, Hidden, NoiseKeys

PARTS = 8  # of the vocabulary on a mesh, or a multiple


class _Best(NamedTuple):
    """The best ids so far, and their logits."""

    ids: Int[Array, "B C k"]
    logits: Float[Array, "B C k"]


class _RunningDivergence(NamedTuple):
    """Running sums of the Kullback-Leibler divergence from an earlier distribution."""

    highest: Float[Array, "B C"]  # of the previous logits
    total: Float[Array, "B C"]  # sum of exp(previous logit - highest)
    moved: Float[Array, "B C"]  # sum of exp(logit - first) * (logit - previous logit)


class _Classes(NamedTuple):
    """The best id of each class so far, its logit, its logit with noise if that decides, and the
    sum of exp(logit - first) over the class."""

    ids: Int[Array, "B C G"]
    logits: Float[Array, "B C G"]
    noisy: Float[Array, "B C G"] | None
    total: Float[Array, "B C G"] | None


class RunningHead(NamedTuple):
    """All statistics of the vocabulary seen so far."""

    scores: RunningScores
    top: _Best | None
    listed: Float[Array, "B C K"] | None
    classes: _Classes | None
    divergence: _RunningDivergence | None


def measure_rows(
    params: ModelParams,
    hidden: Hidden,
    noise_keys: NoiseKeys,
    request: HeadRequest,
    rules: ScoreRules,
) -> HeadOut:
    """Returns the scores of `score_rows` and the requested extras, from one pass.

    All but the sampled token belongs to the distribution of the confidences: without noise, with
    the `added` logits, and without ids that `rules` forbid or discount.
    """
    absorb = partial(absorb_head, noise_keys=noise_keys, request=request, rules=rules)
    rows, running = start_head(hidden, request, rules)
    return finish_head(head.over_ids(head.head_weight(params), rows, rules, absorb, running))


def measure_own_ids(
    params: ModelParams,
    hidden: Hidden,
    noise_keys: NoiseKeys,
    request: HeadRequest,
    rules: ScoreRules,
) -> HeadOut:
    """Computes `measure_rows` for one device's part of the parameters, the same on all devices.

    The vocabulary is always cut into `PARTS` parts, or a multiple, whatever the number of devices,
    and the statistics of parts are merged in order. So equal states have bit-identical scores on 1,
    2, 4 and 8 devices, and all devices of a mesh take the same branches of the decoding loop.
    """
    vocab, devices = params.embedding.shape[0], jax.lax.axis_size(MODEL)
    parts = lcm(devices, gcd(vocab, PARTS))
    size, n_local = vocab // parts, parts // devices
    weight, rules = head.head_weight(params), replace(rules, anywhere=vocab)
    rows, nothing = start_head(hidden, request, rules)
    absorb = partial(absorb_head, noise_keys=noise_keys, request=request, rules=rules)

    def of_part(index: Int[Array, ""]) -> RunningHead:
        first = (jax.lax.axis_index(MODEL) * n_local + index) * size
        row = first if params.head is None else index * size  # every device has the embedding whole
        return head.over_ids(weight, rows, rules, absorb, nothing, first, size, row)

    local = jax.lax.map(of_part, jnp.arange(n_local, dtype=jnp.int32))
    leaves, tree = jax.tree.flatten(jax.lax.all_gather(local, MODEL, tiled=True))
    return finish_head(reduce(merged, map(tree.unflatten, zip(*leaves, strict=True))))


def start_head(
    hidden: Hidden, request: HeadRequest, rules: ScoreRules
) -> tuple[Float[Array, "B X D"], RunningHead]:
    """Returns the states to compute logits of, `hidden` and then `previous`, and the statistics
    before the first chunk."""
    shape, dtype = hidden.shape[:2], jnp.dtype(rules.confidence_dtype)
    scores = head.start_scores(shape, dtype)

    def lowest(*sizes: int) -> Float[Array, "..."]:
        return jnp.full(sizes, -jnp.inf, dtype)

    def best(count: int) -> _Best | None:
        nothing = jnp.full((*shape, count), -1, jnp.int32)
        return _Best(nothing, lowest(*shape, count)) if count else None

    listed = None if request.listed is None else lowest(*request.listed.shape)
    classes, size = best(request.n_classes), (*shape, request.n_classes)
    if classes is not None:
        noisy = lowest(*size) if request.class_samples else None
        classes = _Classes(*classes, noisy, jnp.zeros(size, dtype) if request.class_mass else None)
    running = RunningHead(scores, best(request.top_k), listed, classes, None)
    if request.previous is None:
        return hidden, running
    zero = jnp.zeros(shape, dtype)
    running = running._replace(divergence=_RunningDivergence(scores.first, zero, zero))
    return jnp.concatenate([hidden, request.previous.astype(hidden.dtype)], axis=1), running


def absorb_head(
    seen: RunningHead,
    logits: Float[Array, "B X chunk"],
    start: VocabId,
    noise_keys: NoiseKeys,
    request: HeadRequest,
    rules: ScoreRules,
) -> RunningHead:
    """Returns the statistics with one more chunk of the vocabulary, from id `start` on."""
    never, count = (*rules.forbidden, *rules.discounted), seen.scores.token.shape[1]
    previous = head.without(logits[:, count:], never, start)
    logits = _with_added(logits[:, :count], request, start)
    scores = head.absorb_chunk(seen.scores, logits, start, noise_keys, rules)
    logits = head.without(logits, never, start)
    top, listed, classes, divergence = seen[1:]
    if top is not None:
        ids = jnp.broadcast_to(head.ids_in(logits) + start, logits.shape)
        top = _best_of(top, _Best(ids, logits))
    if listed is not None and request.listed is not None:
        at = _inside(request.listed, start, logits.shape[-1])
        new = jnp.take_along_axis(logits, jnp.minimum(at, logits.shape[-1] - 1), axis=-1)
        listed = jnp.where(at < logits.shape[-1], new, listed)
    if classes is not None and request.class_of is not None:
        of_chunk = jax.lax.dynamic_slice_in_dim(request.class_of, start, logits.shape[-1])
        noise = rules.noise(noise_keys, start, logits) if request.class_samples else None
        first = (seen.scores.first, scores.first)
        classes = _best_of_classes(classes, logits, noise, start, of_chunk, *first)
    if divergence is not None:
        divergence = _diverged(divergence, logits, previous, seen.scores.first, scores.first)
    return RunningHead(scores, top, listed, classes, divergence)


def _with_added(
    logits: Float[Array, "B C chunk"], request: HeadRequest, start: VocabId
) -> Float[Array, "B C chunk"]:
    if request.listed is None or request.added is None:
        return logits
    at = _inside(request.listed, start, logits.shape[-1])
    batch = jnp.arange(logits.shape[0])[:, None, None]
    row = jnp.arange(logits.shape[1])[:, None]
    return logits.at[batch, row, at].add(request.added.astype(logits.dtype), mode="drop")


def _inside(ids: Int[Array, "B C K"], start: VocabId, size: int) -> Int[Array, "B C K"]:
    """Returns the indices of ids in a chunk; `size` for ids outside it."""
    at = ids - start
    return jnp.where((at >= 0) & (at < size), at, size)


def _best_of(one: _Best, other: _Best) -> _Best:
    """Returns the best ids of two parts of the vocabulary; `one` has the lower ids."""
    ids, logits = (jnp.concatenate(pair, axis=-1) for pair in zip(one, other, strict=True))
    highest, at = jax.lax.top_k(logits, one.ids.shape[-1])
    return _Best(jnp.take_along_axis(ids, at, axis=-1), highest)


def _best_of_classes(
    seen: _Classes,
    logits: Float[Array, "B C chunk"],
    noise: Float[Array, "B C chunk"] | None,
    start: VocabId,
    of_chunk: Int[Array, " chunk"],
    first_before: Float[Array, "B C"],
    first: Float[Array, "B C"],
) -> _Classes:
    size = logits.shape[-1]
    noisy = logits if noise is None else logits + noise
    by_id = jnp.moveaxis(noisy, -1, 0)  # contiguous rows of an id are compared at once
    shape = (seen.ids.shape[-1], *by_id.shape[1:])
    best = jnp.full(shape, -jnp.inf, logits.dtype).at[of_chunk].max(by_id)
    wins = (by_id == best[of_chunk]) & (by_id > -jnp.inf)
    indices = jnp.where(wins, head.ids_in(logits)[:, None, None], size)
    at = jnp.full(shape, size, jnp.int32).at[of_chunk].min(indices)
    best, at = jnp.moveaxis(best, 0, -1), jnp.moveaxis(at, 0, -1)
    better = best > (seen.logits if seen.noisy is None else seen.noisy)
    total, logit = seen.total, best
    if seen.noisy is not None:
        logit = jnp.take_along_axis(logits, jnp.minimum(at, size - 1), axis=-1)
    if total is not None:
        member = (of_chunk[:, None] == jnp.arange(seen.ids.shape[-1])[None, :]).astype(logits.dtype)
        share = jnp.exp(logits - first[..., None])
        total = total * jnp.exp(first_before - first)[..., None] + share @ member
    return _Classes(
        jnp.where(better, at + start, seen.ids),
        jnp.where(better, logit, seen.logits),
        None if seen.noisy is None else jnp.where(better, best, seen.noisy),
        total,
    )


def _diverged(
    seen: _RunningDivergence,
    logits: Float[Array, "B C chunk"],
    previous: Float[Array, "B C chunk"],
    first_before: Float[Array, "B C"],
    first: Float[Array, "B C"],
) -> _RunningDivergence:
    highest = jnp.maximum(seen.highest, previous.max(axis=-1))
    total = jnp.exp(previous - highest[..., None]).sum(axis=-1)
    share = jnp.exp(logits - first[..., None])
    moved = jnp.where(share > 0, share * (logits - previous), 0).sum(axis=-1)
    return _RunningDivergence(
        highest,
        seen.total * jnp.exp(seen.highest - highest) + total,
        seen.moved * jnp.exp(first_before - first) + moved,
    )


def merged(one: RunningHead, other: RunningHead) -> RunningHead:
    """Returns the statistics of two parts of the vocabulary; `one` has the lower ids."""
    scores, both = head.merged_scores(one.scores, other.scores), (one, other)
    lowered = [jnp.exp(part.scores.first - scores.first) for part in both]
    top, listed, classes, divergence = one[1:]
    if top is not None and other.top is not None:
        top = _best_of(top, other.top)
    if listed is not None and other.listed is not None:
        listed = jnp.maximum(listed, other.listed)  # -inf for ids of the other part
    new = other.classes
    if classes is not None and new is not None:
        better = new.logits > classes.logits
        if classes.noisy is not None and new.noisy is not None:
            better = new.noisy > classes.noisy
        chosen = jax.tree.map(partial(jnp.where, better), new[:3], classes[:3])
        total = classes.total
        if total is not None and new.total is not None:
            total = total * lowered[0][..., None] + new.total * lowered[1][..., None]
        classes = _Classes(chosen[0], chosen[1], chosen[2], total)
    new = other.divergence
    if divergence is not None and new is not None:
        highest = jnp.maximum(divergence.highest, new.highest)
        total = divergence.total * jnp.exp(divergence.highest - highest)
        total += new.total * jnp.exp(new.highest - highest)
        moved = divergence.moved * lowered[0] + new.moved * lowered[1]
        divergence = _RunningDivergence(highest, total, moved)
    return RunningHead(scores, top, listed, classes, divergence)


def finish_head(seen: RunningHead) -> HeadOut:
    """Returns the scores and extras, once every chunk was absorbed."""
    scores, divergence = seen.scores, None
    log_sum_exp = scores.first + jnp.log(scores.total)
    if seen.divergence is not None:
        highest, total, moved = seen.divergence
        before = highest + jnp.log(total)
        divergence = jnp.maximum(moved / scores.total - log_sum_exp + before, 0)
    ids, logits, noisy, total = seen.classes or (None, None, None, None)
    mass = None
    if total is not None and logits is not None:  # at least the best id, if its share rounds to 0
        mass = jnp.maximum(jnp.log(total) + scores.first[..., None], logits)
    top = seen.top or (None, None)
    measured = HeadExtras(log_sum_exp, *top, seen.listed, ids, logits, divergence, noisy, mass)
    return HeadOut(head.finish_scores(scores), measured)
