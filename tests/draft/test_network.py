"""The drafter's network, against the authors' code on a random pair (tests/goldens/README.md)."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.checkpoint import load_params
from llada_jax.draft.blocks import Blocks, block_states
from llada_jax.draft.files import read_drafter
from llada_jax.draft.network import context_rows, default_taps, draft_block, tapped
from llada_jax.model.head import head_logits

GOLDEN = Path(__file__).parent.parent / "goldens" / "dflash"
EXPECTED = dict(np.load(GOLDEN / "drafts.npz"))
TOKENS, STARTS = jnp.asarray(EXPECTED["tokens"]), EXPECTED["starts"]


@cache
def pair():
    """Returns the target's configuration and parameters, and the drafter's."""
    return *load_params(GOLDEN / "target", "float32")[:2], *read_drafter(GOLDEN / "drafter")


@cache
def target_taps(taps: tuple[int, ...]):
    config, params, _, _ = pair()
    return jax.jit(lambda p: tapped(p, config, TOKENS, taps))(params)


def draft_logits(taps):
    _, params, config, drafter = pair()
    blocks = Blocks(TOKENS, taps, np.array([17], np.int32), STARTS[None])
    hidden = jax.jit(block_states, static_argnums=1)(drafter, config, params.embedding, blocks)
    return head_logits(hidden, params.embedding)


def test_taps_are_the_outputs_of_the_layers():
    taps = target_taps(pair()[2].taps)
    np.testing.assert_allclose(taps, EXPECTED["taps"], rtol=0, atol=2e-5)


def test_logits_equal_the_authors():
    logits = draft_logits(target_taps(pair()[2].taps))
    expected = EXPECTED["logits"].reshape(logits.shape)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=5e-5)


def test_taps_of_the_next_layers_draft_otherwise():
    wrong = draft_logits(target_taps(tuple(tap + 1 for tap in pair()[2].taps)))
    assert np.abs(wrong - EXPECTED["logits"].reshape(wrong.shape)).max() > 0.1


@pytest.mark.parametrize("count", [4, 2])
def test_decoding_drafts_the_authors_tokens(count):
    """The context is a cache by position, whose positions from the anchor on hold anything."""
    _, params, config, drafter = pair()
    positions = jnp.arange(17)[None]
    context = context_rows(drafter, config, target_taps(config.taps), positions)
    for start, logits in zip(STARTS.tolist(), EXPECTED["logits"], strict=True):
        visible = positions < start
        dirty = jax.tree.map(
            lambda x, seen=visible[..., None, None]: jnp.where(seen, x, 1e3), context
        )
        at = jnp.array([start], jnp.int32)
        drafts = draft_block(
            drafter, config, params.embedding, None, dirty, visible, TOKENS[:, start], at, count
        )
        if count == 4:  # fewer rows are another block
            assert drafts.tolist() == [logits.argmax(axis=-1).tolist()]
        assert drafts.shape == (1, count)


def test_a_reduced_vocabulary_drafts_its_best_id():
    _, params, config, drafter = pair()
    best = EXPECTED["logits"][0].argmax(axis=-1)
    ids = jnp.array([i for i in range(96) if i not in best], jnp.int32)
    context = context_rows(drafter, config, target_taps(config.taps), jnp.arange(17)[None])
    drafts = draft_block(
        drafter._replace(ids=ids), config, params.embedding, None, context,
        jnp.arange(17)[None] < 12, TOKENS[:, 12], jnp.array([12], jnp.int32), 4,
    )  # fmt: skip
    expected = ids[EXPECTED["logits"][0][:, ids].argmax(axis=-1)]
    assert drafts[0].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("layers", "count", "taps"),
    [(36, 5, (1, 9, 17, 25, 33)), (30, 5, (1, 8, 14, 20, 27)), (30, 3, (1, 14, 27)), (30, 1, (15,)),
     (40, 5, (1, 10, 19, 28, 37)), (24, 5, (1, 6, 11, 16, 21))],
)  # fmt: skip
def test_default_taps_are_the_published_ones(layers, count, taps):
    assert default_taps(layers, count) == taps


@pytest.mark.parametrize(
    ("act", "message"),
    [(lambda config: default_taps(5, 3), "taps is 3; allowed: 1 to 2 of 5 layers"),
     (lambda config: replace(config, taps=(5,)), "target_layer_ids is .5.; allowed: .* 0 to 4"),
     (lambda config: replace(config, block_length=1), "block_length is 1; allowed: 2 or more"),
     (lambda config: replace(config, mask_id=96), "mask_id is 96; allowed: 0 to 95")],
)  # fmt: skip
def test_bad_numbers_are_refused(act, message):
    with pytest.raises(ValueError, match=message):
        act(pair()[2])
