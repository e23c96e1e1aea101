"""A gated-LoRA drafter: the target's own rows, its masks, its training and its files."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.config import LoraConfig
from llada_jax.draft.blocks import Blocks
from llada_jax.draft.gated_lora import (
    GatedLora,
    GatedLoraConfig,
    gated_lora_drafts,
    init_gated_lora,
)
from llada_jax.model.forward import cache_for, forward_rows
from llada_jax.rows import make_rows
from tests.draft.test_dflash import PROMPTS, TARGET
from tests.drawn_params import drawn_params

K = 3
CONFIG = GatedLoraConfig(
    shape=TARGET, lora=LoraConfig(rank=2, alpha=4.0), n_masks=K, target=None, n_ids=None
)


@functools.cache
def target(seed: int = 0) -> lj.Model:
    params = drawn_params(TARGET, seed)
    layers = jax.tree.map(lambda leaf: 3 * leaf, params.layers)
    return lj.Model(TARGET, params._replace(layers=layers), None)


def drawn(seed: int = 1):
    """Returns parameters of which none is zero."""
    params = init_gated_lora(CONFIG, target().params.embedding, jax.random.key(seed))
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: leaf + 0.3 * rng.standard_normal(leaf.shape).astype(np.float32), params
    )


def drafting(seed: int = 1, model: lj.Model | None = None) -> lj.Model:
    return (model or target()).with_drafter(GatedLora(CONFIG, drawn(seed)))


def preset(**changes):
    return lj.SamplerConfig.preset("draft", gen_length=11, block_length=K + 1, **changes)


@pytest.mark.parametrize("seed", [1, 2])
def test_output_equals_plain_decoding(seed):
    plain = lj.SamplerConfig.preset("autoregressive", gen_length=11)
    expected = lj.generate(target(), PROMPTS, plain)
    drafted = lj.generate(drafting(seed), PROMPTS, preset())
    np.testing.assert_array_equal(drafted.tokens, expected.tokens)


def rows_of(tokens):
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    nothing = jnp.zeros((len(tokens), 0), bool)
    live = positions < jnp.array([[6], [5]])
    return make_rows(tokens, positions, live, nothing, positions, positions[:, :0])


def test_rows_of_the_target_do_not_depend_on_the_drafter():
    rows = rows_of(jnp.arange(12, dtype=jnp.int32).reshape(2, 6))
    cache = cache_for(target().params, TARGET, 2, 0)

    @jax.jit
    def run(drafter):
        return drafter.forward_rows(target().params, TARGET, rows, cache)

    one, other = run(drafting(1).drafter), run(drafting(2).drafter)
    assert (one.taps != other.taps).all(axis=-1).sum() == one.taps[..., 0].size
    for mine, theirs in zip(*map(jax.tree.leaves, (one[:3], other[:3])), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    plain = jax.jit(forward_rows, static_argnums=1)(target().params, TARGET, rows, cache)
    np.testing.assert_allclose(one.hidden[0], plain.hidden[0], atol=1e-5)


def blocks(seed: int = 0) -> Blocks:
    tokens = np.random.default_rng(seed).integers(0, 38, (2, 12)).astype(np.int32)
    anchors = np.array([[3, 5, 6], [8, 2, -1]], np.int32)
    return Blocks(tokens, None, np.array([12, 10], np.int32), anchors)


def test_training_computes_the_drafts_of_decoding():
    """Each anchor is the token after the last one of a forward."""
    model, example = drafting(), blocks()
    drafts = gated_lora_drafts(model.drafter.params, CONFIG, model.params, example)
    for row, anchors in enumerate(example.anchors.tolist()):
        for anchor, expected in zip(anchors, drafts[row].tolist(), strict=True):
            ...
