"""With noise, the engine decides like the host's sampler on the same logits and noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.model.head import ScoreRules, absorb_chunk, finish_scores, gumbel_noise, start_scores
from llada_jax.sampling_engine.host import random_inputs, run_sampler, store_logits
from llada_jax.sampling_engine.sampler_program import compile_sampler
from llada_jax.sampling_engine.sampling import Sampling
from tests.sampling_engine.cases import exact_engine
from tests.sampling_engine.reference import committed

BATCH, ROWS, VOCAB, K = 2, 8, 100, 3


def of_host(logits, keys, temperature):
    rules = ScoreRules(temperature=temperature)
    start = start_scores(logits.shape[:2], jnp.dtype("float32"))
    return finish_scores(absorb_chunk(start, jnp.asarray(logits), 0, keys, rules))


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0])
def test_the_engine_matches_the_hosts_sampler(temperature):
    inputs = random_inputs(3, BATCH, ROWS, VOCAB, K)
    keys = jax.random.split(jax.random.key(4), (BATCH, ROWS))
    noise = temperature * np.asarray(gumbel_noise(keys, 0, VOCAB, "float32"))
    sampling = Sampling(
        batch=BATCH, rows=ROWS, vocab=VOCAB, mode="one_pass", chunk_rows=2, noisy=True
    )
    engine = exact_engine(vlen=16)
    hbm = store_logits(sampling, engine.vlen, inputs.logits, "float32", noise)
    found = run_sampler(compile_sampler(sampling, engine), inputs, hbm)
    wanted = of_host(inputs.logits, keys, temperature)
    np.testing.assert_array_equal(found.predictions, wanted.token)
    if temperature > 0.5:
        assert (found.predictions != inputs.logits.argmax(axis=-1)).any()
    confidence = np.asarray(wanted.confidence, np.float64)
    transfer = committed(confidence, inputs.open, inputs.k)
    np.testing.assert_array_equal(found.transfer, transfer)


def test_noise_requires_a_noisy_program():
    sampling = Sampling(batch=1, rows=1, vocab=8, mode="one_pass", noisy=True)
    with pytest.raises(ValueError, match="noisy is True and noise not given; allowed: both"):
        store_logits(sampling, 8, np.zeros((1, 1, 8), np.float32), "float32")
    with pytest.raises(ValueError, match="mode of a noisy sampler is 'edge'; allowed: 'one_pass'"):
        Sampling(batch=1, rows=1, vocab=8, mode="edge", noisy=True)
