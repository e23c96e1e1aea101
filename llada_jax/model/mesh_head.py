"""The head on a mesh: each device streams its own part of the vocabulary, and all fold the parts.

The vocabulary is always cut into the same `PARTS`, or a multiple, whatever number of devices holds
them, and statistics of parts are merged in order. So scores of equal states are equal to the bit on
1, 2, 4 and 8 devices, and on all of them: what the decoding loops branch by is the same everywhere.
"""

from dataclasses import replace
from functools import partial, reduce
from math import gcd, lcm

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from llada_jax.model.head import RunningScores, head_weight, over_ids
from llada_jax.model.measures import (
    Classes,
    Divergence,
    RunningHead,
    absorb_head,
    best_of,
    finish_head,
    start_head,
)
from llada_jax.model.params import ModelParams
from llada_jax.model.score_rules import ScoreRules
from llada_jax.on_mesh import MODEL
from llada_jax.types import Asked, HeadOut

PARTS = 8


def measure_own_ids(
    params: ModelParams,
    hidden: Float[Array, "B C D"],
    noise_keys: Key[Array, "B C"] | None,
    asked: Asked,
    rules: ScoreRules,
) -> HeadOut:
    """Is `measure_rows` for a device's part of the parameters; the same on all that share them."""
    vocab, devices = params.embedding.shape[0], jax.lax.axis_size(MODEL)
    parts = lcm(devices, gcd(vocab, PARTS))
    size, own = vocab // parts, parts // devices
    weight, rules = head_weight(params), replace(rules, anywhere=vocab)
    rows, nothing = start_head(hidden, asked, rules)
    absorb = partial(absorb_head, noise_keys=noise_keys, asked=asked, rules=rules)

    def of_part(index: Int[Array, ""]) -> RunningHead:
        first = (jax.lax.axis_index(MODEL) * own + index) * size
        row = first if params.head is None else index * size  # every device has the embedding whole
        return over_ids(weight, rows, rules, absorb, nothing, first, size, row)

    found = jax.lax.map(of_part, jnp.arange(own, dtype=jnp.int32))
    leaves, tree = jax.tree.flatten(jax.lax.all_gather(found, MODEL, tiled=True))
    return finish_head(reduce(merged, map(tree.unflatten, zip(*leaves, strict=True))))


def merged(one: RunningHead, other: RunningHead) -> RunningHead:
    """Returns statistics of two parts of the vocabulary, of which `one` has the lower ids."""
    scores, both = _merged_scores(one.scores, other.scores), (one, other)
    lowered = [jnp.exp(each.scores.first - scores.first) for each in both]
    top, listed, classes, divergence = one[1:]
    if top is not None and other.top is not None:
        top = best_of(top, other.top)
    if listed is not None and other.listed is not None:
        listed = jnp.maximum(listed, other.listed)  # -inf where an id is of another part
    new = other.classes
    if classes is not None and new is not None:
        better = new.logits > classes.logits
        if classes.noisy is not None and new.noisy is not None:
            better = new.noisy > classes.noisy
        chosen = jax.tree.map(partial(jnp.where, better), new[:3], classes[:3])
        total = classes.total
        if total is not None and new.total is not None:
            total = total * lowered[0][..., None] + new.total * lowered[1][..., None]
        classes = Classes(chosen[0], chosen[1], chosen[2], total)
    new = other.divergence
    if divergence is not None and new is not None:
        highest = jnp.maximum(divergence.highest, new.highest)
        total = divergence.total * jnp.exp(divergence.highest - highest)
        total += new.total * jnp.exp(new.highest - highest)
        moved = divergence.moved * lowered[0] + new.moved * lowered[1]
        divergence = Divergence(highest, total, moved)
    return RunningHead(scores, top, listed, classes, divergence)


def _merged_scores(one: RunningScores, other: RunningScores) -> RunningScores:
    better = other.best > one.best
    first = jnp.maximum(one.first, other.first)
    second = jnp.maximum(jnp.minimum(one.first, other.first), jnp.maximum(one.second, other.second))
    total = weighted = jnp.zeros_like(first)
    for each in (one, other):
        rescale = jnp.exp(each.first - first)
        moved = each.weighted + each.total * jnp.where(rescale > 0, each.first - first, 0)
        total, weighted = total + each.total * rescale, weighted + moved * rescale
    chosen = jax.tree.map(partial(jnp.where, better), other[:3], one[:3])  # with their logits
    return RunningScores(chosen[0], chosen[1], chosen[2], first, second, total, weighted)
