"""Doubt is recorded as the probability that a forward gives to the current token."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.generate import decode
from llada_jax.sampler.prompts import with_ids
from llada_jax.sampler.record import token_probability
from llada_jax.testing import toy_denoiser, toy_logits
from llada_jax.types import HeadExtras, HeadOut, HeadRequest
from tests.sampler.rules.test_staged import STAGED, doubted
from tests.sampler.scripted import Scripted
from tests.sampler.toy import CONFIG

STORY = SamplerConfig.from_flat(
    gen_length=6, block_length=3, steps=6, cache="blockwise", accept="staged",
    theta_visible=0.5, theta_stable=0.8,
)  # fmt: skip

HIDDEN = jnp.stack([jnp.arange(12) * 77 % 1009, jnp.arange(12)], axis=-1).reshape(2, 6, 2)
STANDING = (jnp.arange(12) % 7).reshape(2, 6)


def test_the_head_measures_doubt_exactly():
    config = with_ids(STAGED, CONFIG)
    denoiser = toy_denoiser(config)
    assert denoiser.measure_rows is not None
    head = jax.jit(denoiser.measure_rows)(
        jnp.int32(0), HIDDEN, None, HeadRequest(listed=STANDING[..., None])
    )
    logits = (
        jax.jit(toy_logits)(jnp.int32(0), HIDDEN).at[..., jnp.array([CONFIG.mask_id])].set(-jnp.inf)
    )
    share = jnp.take_along_axis(jax.nn.softmax(logits), STANDING[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(token_probability(head), share, rtol=1e-5)
    bound = token_probability(HeadOut(head.scores, None))
    preferred = head.scores.token == STANDING
    assert not preferred.all() and (preferred | (bound >= share)).all(), "what else is known of it"


def test_the_trace_contains_doubt():
    """The head's measurement: 0.05, while the preferred token has 0.6."""
    scripted, config = Scripted(doubted), with_ids(STORY, CONFIG)

    def measure(params, hidden, keys, asked):
        listed = np.full(asked.listed.shape, np.log(0.05), np.float32)
        nothing = np.zeros(listed.shape[:2], np.float32)
        rest = dict.fromkeys(set(HeadExtras._fields) - {"listed", "log_sum_exp"})
        scores = scripted.denoiser().score_rows(params, hidden, keys)
        return HeadOut(scores, HeadExtras(listed=listed, log_sum_exp=nothing, **rest))

    denoiser, seen = replace(scripted.denoiser(), measure_rows=measure), []
    decode(denoiser, None, CONFIG, [[0, 1, 2]], config, loop="host", on_step=seen.append)
    np.testing.assert_allclose(seen[1].confidence[0, 3], 0.05, rtol=1e-6)
