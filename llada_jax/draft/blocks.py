"""Training of a DFlash drafter, and its acceptance on finished answers (arXiv 2602.06036, 4.2).

One forward runs many blocks of a sequence. Each begins at an anchor, a random position of the
answer, and its rows see the context strictly before the anchor and their own block, as in decoding.
Visibility depends on positions and not on the order of blocks: otherwise blocks closer than a block
length would see context that decoding does not have yet.

With greedy decoding, what a target accepts of a draft follows from its own answer: drafts are
accepted up to the first one that differs from it. So `greedy_cycles` measures the tokens per
forward of the target exactly, without decoding.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from llada_jax.draft.network import (
    DFlashConfig,
    DFlashParams,
    best_ids,
    context_rows,
    draft_head,
    run_blocks,
)
from llada_jax.model.head import head_logits
from llada_jax.model.layers import HIDDEN_SCORE, CachedLayer, KeysValues, softmax
from llada_jax.model.quantize import Weight


class Blocks(NamedTuple):
    """Sequences with N anchors each."""

    tokens: Int[Array | np.ndarray, "B L"]
    taps: Float[Array | np.ndarray, "B L n D"] | None  # None for a drafter that reads none
    ends: Int[Array | np.ndarray, " B"]  # lengths of the sequences without padding
    anchors: Int[Array | np.ndarray, "B N"]  # positions; -1 for none


def attend_by_block(
    query: Float[Array, "B R H Dh"],
    fresh: KeysValues,
    visible: Bool[Array, "B N L"],
    context: CachedLayer,
) -> Float[Array, "B R HDh"]:
    """Runs attention of the rows of N blocks over the context that their block sees, and over the
    rows of their own block. Scores of rows of different blocks are not computed."""
    (batch, n_rows, n_heads, dim), n_blocks = query.shape, visible.shape[1]
    n_groups = context.keys.shape[1]
    by_block = batch, n_blocks, n_rows // n_blocks, n_groups
    rows = (query * dim**-0.5).reshape(*by_block, n_heads // n_groups, dim)
    keys, values = (x.reshape(*by_block, dim) for x in fresh)
    wide = partial(jnp.einsum, preferred_element_type=jnp.float32)
    outside = wide("bnrkgd,bkld->bkgnrl", rows, context.keys)
    outside += jnp.where(visible, 0.0, HIDDEN_SCORE)[:, None, None, :, None]
    inside = wide("bnrkgd,bntkd->bkgnrt", rows, keys)
    shares = softmax(jnp.concatenate([outside, inside], axis=-1)).astype(query.dtype)
    outside, inside = jnp.split(shares, [visible.shape[2]], axis=-1)
    out = wide("bkgnrl,bkld->bnrkgd", outside, context.values)
    out += wide("bkgnrt,bntkd->bnrkgd", inside, values)
    return out.astype(query.dtype).reshape(batch, n_rows, -1)


def block_states(
    params: DFlashParams, config: DFlashConfig, embedding: Float[Array, "V D"], blocks: Blocks
) -> Float[Array, "B Nk D"]:
    """Returns the states of the k = block_length - 1 mask rows of each block, block after block."""
    size, (batch, n_anchors) = config.block_length, blocks.anchors.shape
    tokens, anchors = jnp.asarray(blocks.tokens), jnp.maximum(blocks.anchors, 0)
    rows = jnp.full((batch, n_anchors, size), config.mask_id, tokens.dtype)
    rows = rows.at[:, :, 0].set(jnp.take_along_axis(tokens, anchors, axis=1))
    positions = anchors[..., None] + jnp.arange(size, dtype=anchors.dtype)
    spread = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=anchors.dtype), tokens.shape)
    hidden = run_blocks(
        params,
        config,
        embedding,
        rows.reshape(batch, -1),
        positions.reshape(batch, -1),
        context_rows(params, config, jnp.asarray(blocks.taps), spread),
        spread[:, None] < anchors[..., None],
        attend_by_block,
    )
    drafts = hidden.reshape(batch, n_anchors, size, -1)[:, :, 1:]
    return drafts.reshape(batch, n_anchors * (size - 1), -1).astype(embedding.dtype)


def block_labels(config: Any, blocks: Blocks) -> tuple[Int[Array, "B N k"], Bool[Array, "B N k"]]:
    """Returns the tokens after each anchor, and whether they exist."""
    anchors = jnp.asarray(blocks.anchors)[..., None]
    at = anchors + jnp.arange(1, config.block_length, dtype=anchors.dtype)
    exists = (anchors >= 0) & (at < jnp.asarray(blocks.ends)[:, None, None])
    at = jnp.where(exists, at, 0)
    tokens = jnp.asarray(blocks.tokens)
    found = jnp.take_along_axis(tokens, at.reshape(len(tokens), -1), axis=1)
    return found.reshape(at.shape), exists


def draft_loss(
    params: DFlashParams,
    config: DFlashConfig,
    embedding: Float[Array, "V D"],
    head: Weight | None,
    blocks: Blocks,
    decay: float,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Returns the cross-entropy of the drafts in nats, weighted exp(-(k - 1) / decay) at distance k
    from the anchor, and metrics: the share of first choices that are right at each distance.

    Labels outside of a reduced draft vocabulary have no weight in the loss, and count as wrong.
    """
    hidden = block_states(params, config, embedding, blocks)
    return weighted_loss(params, config, hidden, embedding, head, blocks, decay)


def weighted_loss(
    params: Any,
    config: Any,
    hidden: Float[Array, "B Nk D"],
    embedding: Float[Array, "V D"],
    head: Weight | None,
    blocks: Blocks,
    decay: float,
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Returns `draft_loss` of the states that predict the drafts, of any kind of drafter: its
    parameters have `ids`, and its configuration `block_length`."""
    labels, exists = block_labels(config, blocks)
    if params.ids is None:
        index = labels
    else:
        rows = jnp.full(len(embedding), -1, jnp.int32)
        index = rows.at[params.ids].set(jnp.arange(len(params.ids), dtype=jnp.int32))[labels]
    logits = head_logits(hidden, draft_head(params, embedding, head)).reshape(*labels.shape, -1)
    chosen = jnp.take_along_axis(logits, jnp.maximum(index, 0)[..., None], axis=-1)[..., 0]
    loss = jax.nn.logsumexp(logits, axis=-1) - chosen
    distance = jnp.arange(labels.shape[-1], dtype=jnp.float32)
    counts = exists & (index >= 0)
    weights = jnp.where(counts, jnp.exp(-distance / decay), 0)
    right = (counts & (chosen == logits.max(axis=-1))).sum(axis=(0, 1))
    shares = right / jnp.maximum(exists.sum(axis=(0, 1)), 1)
    mean = (loss * weights).sum() / jnp.maximum(weights.sum(), 1e-6)
    return mean, {"loss": mean, **{f"right_{k + 1}": share for k, share in enumerate(shares)}}


def draft_blocks(
    params: DFlashParams,
    config: DFlashConfig,
    embedding: Float[Array, "V D"],
    head: Weight | None,
    blocks: Blocks,
) -> Int[Array, "B N k"]:
    """Returns the drafts after each anchor, as decoding makes them."""
    hidden = block_states(params, config, embedding, blocks)
    ids = best_ids(params, hidden, draft_head(params, embedding, head))
    return ids.reshape(*blocks.anchors.shape, -1)


def greedy_cycles(drafts: Int[np.ndarray, "T k"], answer: Sequence[int]) -> list[int]:
    """Returns the number of drafts that a greedy target accepts in each cycle of an answer.

    The first token of the answer comes from the prompt's forward. The T - 1 others take one forward
    of the target for each element of the result.

    Args:
      drafts: Drafts after each token of the answer, given the tokens up to there.
      answer: The target's greedy answer.
    """
    accepted, at = [], 0
    while at < len(answer) - 1:
        following = answer[at + 1 : at + 1 + drafts.shape[1]]
        right = drafts[at, : len(following)] == following
        accepted.append(int(np.cumprod(right).sum()))
        at += accepted[-1] + 1
    return accepted
