"""The machine decides as the reference does, token for token and mask for mask."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.sampling_engine.formats import rounded
from llada_jax.sampling_engine.host import random_inputs
from llada_jax.sampling_engine.sampling import MODES, EngineConfig, Sampling
from tests.sampling_engine.cases import assert_same, exact_engine, run
from tests.sampling_engine.reference import reference_sampler


@pytest.mark.parametrize("mode", MODES)
def test_programs_match_the_reference(mode):
    """A vocabulary that VLEN does not divide, and chunks that do not divide its rows."""
    sampling = Sampling(batch=2, rows=12, vocab=707, mode=mode, chunk_rows=3)
    inputs = random_inputs(3, 2, 12, 707, 3)
    inputs.open[1, ::4] = False
    assert_same(run(sampling, exact_engine(), inputs), reference_sampler(inputs))


@given(
    mode=st.sampled_from(MODES),
    vocab=st.integers(1, 200),
    rows=st.integers(1, 9),
    chunk_rows=st.integers(1, 9),
    k=st.integers(0, 9),
    seed=st.integers(0, 99),
)
def test_any_shape(mode, vocab, rows, chunk_rows, k, seed):
    sampling = Sampling(batch=2, rows=rows, vocab=vocab, mode=mode, chunk_rows=chunk_rows)
    inputs = random_inputs(seed, 2, rows, vocab, min(k, rows))
    assert_same(run(sampling, exact_engine(16), inputs), reference_sampler(inputs))


@pytest.mark.parametrize("mode", MODES)
def test_nan_and_infinite_logits(mode):
    inputs = random_inputs(5, 1, 6, 100, 6)
    logits = inputs.logits[0]
    logits[0] = -np.inf
    logits[1] = np.nan
    logits[2, 40:] = np.nan
    logits[3, [7, 70]] = np.inf
    logits[4, :99] = -np.inf
    sampling = Sampling(batch=1, rows=6, vocab=100, mode=mode)
    found = run(sampling, exact_engine(), inputs)
    assert_same(found, reference_sampler(inputs))
    assert found.predictions[0, 3] == 7 and found.predictions[0, 4] == 99
    assert found.transfer[0].tolist() == [False, False, True, True, True, True]


@pytest.mark.parametrize("mode", MODES)
def test_padding_is_ignored(mode):
    inputs = random_inputs(1, 1, 4, 40, 2)
    inputs = inputs._replace(logits=inputs.logits - 1000)
    sampling = Sampling(batch=1, rows=4, vocab=40, mode=mode)
    assert_same(run(sampling, exact_engine(), inputs), reference_sampler(inputs))


@pytest.mark.parametrize("mode", MODES)
def test_the_first_of_equal_logits_and_confidences_wins(mode):
    inputs = random_inputs(1, 1, 5, 90, 2)
    inputs.logits[:] = 0
    inputs.logits[..., [33, 34, 89]] = 4
    inputs.open[0, 0] = False
    found = run(Sampling(batch=1, rows=5, vocab=90, mode=mode), exact_engine(), inputs)
    assert found.predictions[0].tolist() == [89, 33, 33, 33, 33]
    assert found.transfer[0].tolist() == [False, True, True, False, False]


@pytest.mark.parametrize("vlen", [32, 128])
def test_bfloat16_picks_the_best_of_the_rounded_logits(vlen):
    inputs = random_inputs(2, 2, 8, 600, 3)
    sampling = Sampling(batch=2, rows=8, vocab=600, mode="one_pass")
    found = run(sampling, EngineConfig(vlen=vlen), inputs)
    best = rounded(inputs.logits, "bfloat16").argmax(axis=-1)
    np.testing.assert_array_equal(found.predictions, best)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(k=np.full(1, 5)), r"k is 5; allowed: 0 to rows \(4\)"),
        (dict(k=np.full(1, -1)), r"k is -1; allowed: 0 to rows \(4\)"),
        (dict(k=np.full(2, 1)), r"k has shape \(2,\); allowed: \(1,\)"),
        (dict(tokens=np.zeros((1, 5), np.int32)), r"tokens has shape \(1, 5\); allowed: \(1, 4\)"),
    ],
)
def test_bad_input(change, message):
    sampling = Sampling(batch=1, rows=4, vocab=50)
    inputs = random_inputs(0, 1, 4, 50, 1)
    with pytest.raises(ValueError, match=message):
        run(sampling, exact_engine(), inputs._replace(**change))
    with pytest.raises(ValueError, match=r"logits have shape \(1, 4, 50\); allowed: \(1, 4"):
        run(Sampling(batch=1, rows=4, vocab=51), exact_engine(), inputs)
