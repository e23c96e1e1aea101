"""The head against plain numpy; its training, and its use in decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.sudoku.quality_head import (
    QualityHead,
    QualityRemask,
    RevealedSamples,
    fit_quality_head,
    quality_loss,
    reveal,
)
from llada_jax.sampler.config import SamplerConfig
from llada_jax.testing import MASK, PROMPTS, TOY, toy_decode
from llada_jax.training.state import create_state
from tests.training.echo import CONFIG, MODEL, batch_at, example


def test_the_loss_is_the_mean_binary_cross_entropy_of_the_samples():
    rng = np.random.default_rng(0)
    hidden, weight = rng.standard_normal((2, 5, 4)), rng.standard_normal(4)
    at, right = rng.random((2, 5)) < 0.6, rng.random((2, 5)) < 0.5
    head = QualityHead(jnp.asarray(weight, jnp.float32), jnp.float32(0.3))
    found = quality_loss(
        head, jnp.asarray(hidden, jnp.float32), RevealedSamples(None, at, right & at)
    )
    sure = 1 / (1 + np.exp(-(hidden @ weight + 0.3)))
    expected = -np.log(np.where(right, sure, 1 - sure))[at].mean()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_requested_number_of_masks_is_revealed():
    masked = jnp.asarray([[True, True, False, True], [False, True, False, False]])
    logits = jnp.full((2, 4, 6), -50.0).at[..., 3].set(0.0)
    truth = jnp.asarray([[3, 4, 1, 3], [1, 3, 1, 1]])
    found = reveal(logits, jnp.where(masked, 0, truth), masked, truth, 2, jax.random.key(0))
    assert found.at.sum(axis=1).tolist() == [2, 1]
    assert not (found.at & ~masked).any()
    np.testing.assert_array_equal(found.right, found.at & (truth == 3))
    np.testing.assert_array_equal(found.tokens, jnp.where(found.at, 3, jnp.where(masked, 0, truth)))


def test_a_quality_head_learns_to_tell_right_from_wrong():
    """One of sixteen tokens of an untrained model is right, so the head learns to doubt."""
    params = create_state(MODEL, CONFIG).params
    batches = [batch_at(example, CONFIG, MODEL.eos_id, step) for step in range(30)]
    head, losses = fit_quality_head(params, MODEL, batches, revealed=4, learning_rate=0.05)
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < 0.7 * losses[0]
    again, _ = fit_quality_head(params, MODEL, batches[:3], revealed=4)
    same, _ = fit_quality_head(params, MODEL, batches[:3], revealed=4)
    jax.tree.map(np.testing.assert_array_equal, again, same)
    assert head.weight.shape == (MODEL.width,)


@pytest.mark.slow
def test_a_head_without_doubt_decodes_like_the_threshold():
    """A head that doubts everything also ends."""
    plain = SamplerConfig.from_flat(
        gen_length=8, block_length=8, steps=8, cache="blockwise", threshold=0.2
    )
    sure, doubting = (QualityHead(jnp.zeros(TOY.width), jnp.float32(bias)) for bias in (9, -9))
    own = plain.replace(threshold=None).replace(rule=QualityRemask.of(sure, threshold=0.2))
    expected = toy_decode(PROMPTS, plain)
    np.testing.assert_array_equal(toy_decode(PROMPTS, own).tokens, expected.tokens)
    remasking = own.replace(rule=QualityRemask.of(doubting, threshold=0.2))
    found = toy_decode(PROMPTS, remasking)
    assert (np.asarray(found.tokens) != MASK).all()
    assert (found.nfe > expected.nfe).all()


@pytest.mark.parametrize(
    ("changes", "revealed", "message"),
    [({"mask_id": None}, 4, "mask_id is None"), ({}, 0, "revealed is 0; allowed: 1 or more")],
)
def test_bad_input_of_a_quality_head_is_refused(changes, revealed, message):
    with pytest.raises(ValueError, match=message):
        fit_quality_head(None, MODEL.replace(**changes), [], revealed)
