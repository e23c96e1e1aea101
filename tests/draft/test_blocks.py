"""Training on blocks: what a row may see, labels and weights; and acceptance on given answers."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.draft.blocks import (
    Blocks,
    block_labels,
    block_states,
    draft_blocks,
    draft_loss,
    greedy_cycles,
)
from llada_jax.draft.network import context_rows
from llada_jax.model.head import head_logits
from tests.draft.test_network import draft, pair

LENGTH, SIZE = 14, 5


@cache
def example() -> Blocks:
    rng = np.random.default_rng(2)
    tokens = rng.integers(3, 90, (1, LENGTH)).astype(np.int32)
    taps = rng.standard_normal((1, LENGTH, 2, 32)).astype(np.float32)
    return Blocks(tokens, taps, np.array([LENGTH], np.int32), np.array([[4, 6, 9]], np.int32))


def states(blocks: Blocks) -> np.ndarray:
    _, params, config, drafter = pair()
    run = jax.jit(block_states, static_argnums=1)
    return np.asarray(run(drafter, config, params.embedding, blocks)).reshape(3, SIZE - 1, -1)


@settings(max_examples=15)
@given(place=st.integers(0, LENGTH - 1), of_taps=st.booleans(), seed=st.integers(0, 9))
def test_a_block_sees_the_context_before_its_anchor_and_nothing_else(place, of_taps, seed):
    """Anchors lie closer than a block length, so each block overlaps the next one's context."""
    blocks = example()
    rng = np.random.default_rng(seed)
    tokens, taps = blocks.tokens.copy(), blocks.taps.copy()
    if of_taps:
        taps[0, place] += rng.standard_normal(taps.shape[2:])
    else:
        tokens[0, place] = (tokens[0, place] + 1) % 90
    changed = states(blocks._replace(tokens=tokens, taps=taps)) != states(blocks)
    for anchor, block in zip(blocks.anchors[0], changed, strict=True):
        assert block.any() == (place < anchor if of_taps else place == anchor)


def test_blocks_do_not_see_each_other():
    blocks = example()
    others = blocks._replace(anchors=np.array([[4, 11, 12]], np.int32))
    np.testing.assert_array_equal(states(others)[0], states(blocks)[0])


def test_training_computes_the_drafts_of_decoding():
    _, params, config, drafter = pair()
    blocks = example()
    run = jax.jit(draft_blocks, static_argnums=1)
    drafts = run(drafter, config, params.embedding, None, blocks)[0]
    positions = jnp.arange(LENGTH)[None]
    rows = jax.jit(context_rows, static_argnums=1)
    context = rows(drafter, config, jnp.asarray(blocks.taps), positions)
    for anchor, expected in zip(blocks.anchors[0].tolist(), drafts, strict=True):
        decoded = draft(
            drafter, config, params.embedding, params.embedding, context, positions < anchor,
            jnp.asarray(blocks.tokens[:, anchor]), jnp.array([anchor], jnp.int32), count=SIZE - 1,
        )  # fmt: skip
        assert decoded[0].tolist() == expected.tolist()


def test_labels_follow_the_anchor_inside_the_sequence():
    blocks = example()._replace(ends=np.array([8], np.int32), anchors=np.array([[5, -1]], np.int32))
    labels, exists = block_labels(pair()[2], blocks)
    assert exists[0].tolist() == [[True, True, False, False], [False] * 4]
    assert labels[0, 0, :2].tolist() == blocks.tokens[0, 6:8].tolist()


@pytest.mark.parametrize("ids", [None, range(40)])
def test_the_loss_is_a_weighted_cross_entropy(ids):
    _, params, config, drafter = pair()
    blocks = example()
    ids = None if ids is None else jnp.array(ids, jnp.int32)
    loss, metrics = draft_loss(
        drafter._replace(ids=ids), config, params.embedding, None, blocks, 4.0
    )
    hidden = jnp.asarray(states(blocks)).reshape(1, -1, 32)
    logits = np.asarray(head_logits(hidden, params.embedding), np.float64)[0]
    logits = logits if ids is None else logits[:, :40]
    total = weight = 0.0
    right = np.zeros(SIZE - 1)
    for row, scores in enumerate(logits):
        block, k = divmod(row, SIZE - 1)
        label = blocks.tokens[0, blocks.anchors[0, block] + k + 1]
        if label < len(scores):
            share = np.exp(-k / 4)
            total += share * (np.log(np.exp(scores).sum()) - scores[label])
            weight += share
            right[k] += scores.argmax() == label
    assert loss == pytest.approx(total / weight, rel=1e-5)
    assert [float(metrics[f"right_{k}"]) for k in range(1, SIZE)] == pytest.approx(right / 3)


def test_cycles_count_accepted_drafts():
    answer = [7, 1, 2, 3, 4, 5]
    drafts = np.array([[1, 2, 9], [0, 0, 0], [0, 0, 0], [4, 5, 6], [0, 0, 0], [0, 0, 0]])
    # 1 and 2 are accepted, the target adds 3; after 3 both are accepted, and the answer ends.
    assert greedy_cycles(drafts, answer) == [2, 2]
    assert greedy_cycles(np.zeros((6, 3), int), answer) == [0] * 5
