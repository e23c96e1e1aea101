"""On real logits the machine makes the same decisions as our sampler, step by step."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.model.head import ScoreRules, absorb_chunk, finish_scores, start_scores
from llada_jax.sampling_engine.host import StepInputs
from llada_jax.sampling_engine.sampling import MODES, Sampling
from tests.sampler.blocks import commits, observed
from tests.sampling_engine.cases import exact_engine, run
from tests.sampling_engine.reference import best_tokens

ROWS, STEPS = 16, 4
QUESTIONS = ("Tom has 3 apples and buys 4 more. How many?", "Anna had 9 pens and lost 2.")


def our_step(logits, tokens, is_open, quota, config):
    """One step of `llada_jax.sampler` on logits."""
    scores = start_scores(logits.shape[:2], jnp.dtype("float32"))
    scores = finish_scores(absorb_chunk(scores, logits, 0, None, ScoreRules()))
    transfer = commits(observed(scores, is_open, quota, config), config)
    return jnp.where(transfer, scores.token, tokens), transfer


@pytest.mark.parametrize("mode", MODES)
def test_the_machine_matches_our_sampler(mode):
    model = lj.load("tiny")
    mask_id, tokenizer = model.config.mask_id, model.tokenizer
    prompts = [tokenizer.encode_chat([{"role": "user", "content": q}]) for q in QUESTIONS]
    length = min(map(len, prompts))
    block = np.full((2, ROWS), mask_id, np.int32)
    canvas = np.concatenate([np.array([p[:length] for p in prompts], np.int32), block], axis=1)
    config = lj.SamplerConfig.from_flat(gen_length=ROWS, block_length=ROWS, steps=STEPS)
    sampling = Sampling(batch=2, rows=ROWS, vocab=model.config.vocab_size, mode=mode)
    k = np.full(2, ROWS // STEPS, np.int32)
    step = jax.jit(partial(our_step, config=config))
    for _ in range(STEPS):
        logits = np.array(lj.forward(model, canvas))[:, length:]
        logits[..., mask_id] = -np.inf
        tokens = canvas[:, length:].copy()
        inputs = StepInputs(logits, tokens, tokens == mask_id, k)
        found = run(sampling, exact_engine(128), inputs)
        after, transfer = map(np.asarray, step(logits, tokens, inputs.open, k))
        best, confidence = best_tokens(logits)
        np.testing.assert_array_equal(found.predictions, np.where(inputs.open, best, tokens))
        for row in range(2):  # the same ones, except for ties of confidence in float32
            ours, engines = (confidence[row, each[row]] for each in (transfer, found.transfer))
            np.testing.assert_allclose(np.sort(engines), np.sort(ours), rtol=1e-6)
        canvas[:, length:] = after
    assert not (canvas == mask_id).any()
