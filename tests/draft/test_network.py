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
from llada_jax.draft.network import context_rows, default_taps, draft_block, draft_head, tapped
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


draft = jax.jit(draft_block, static_argnames=("config", "count"))


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


def drafts(anchor: int, count: int = 4, ids=None, dtype=jnp.float32) -> list[int]:
    """Drafts as decoding does, from a cache by position with garbage from the anchor on."""
    _, params, config, drafter = pair()
    drafter = jax.tree.map(lambda x: x.astype(dtype), drafter)
    positions = jnp.arange(17)[None]
    visible = positions < anchor
    rows = jax.jit(context_rows, static_argnums=1)
    context = jax.tree.map(
        lambda x: jnp.where(visible[:, None, :, None], x, jnp.array(1e3, dtype)),
        rows(drafter, config, target_taps(config.taps).astype(dtype), positions),
    )
    anchors = TOKENS[:, anchor], jnp.array([anchor], jnp.int32)
    drafter = drafter._replace(ids=ids)
    head = draft_head(drafter, params.embedding, None)
    ids = draft(drafter, config, params.embedding, head, context, visible, *anchors, count=count)
    return ids[0].tolist()


def test_decoding_drafts_the_authors_tokens():
    for start, logits in zip(STARTS.tolist(), EXPECTED["logits"], strict=True):
        assert drafts(start) == logits.argmax(axis=-1).tolist()


def test_a_narrow_drafter_serves_a_wide_target():
    assert set(drafts(12, dtype=jnp.bfloat16)) <= set(range(96))


def test_fewer_rows_draft_fewer_tokens():
    assert len(drafts(12, 2)) == 2
    with pytest.raises(ValueError, match="count is 5; allowed: 1 to 4 drafts"):
        drafts(12, 5)


def test_a_reduced_vocabulary_drafts_its_best_id():
    logits = EXPECTED["logits"][0]
    ids = np.setdiff1d(np.arange(96, dtype=np.int32), logits.argmax(axis=-1))
    assert drafts(12, ids=jnp.asarray(ids)) == ids[logits[:, ids].argmax(axis=-1)].tolist()


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
