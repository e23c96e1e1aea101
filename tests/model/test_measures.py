"""Measures that rules request from the head, against the softmax of all logits at once."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from llada_jax.model.head import ScoreRules, score_rows
from llada_jax.model.measures import measure_rows
from llada_jax.types import HeadRequest
from tests.model.test_head import VOCAB, all_logits, random_case, score

N_CLASSES, FORBIDDEN, DISCOUNTED = 5, 3, 11
CLASS_OF = jnp.asarray(np.arange(VOCAB) * 7 % N_CLASSES, jnp.int32)


def measure(params, hidden, asked, chunk=16, discounted=(DISCOUNTED,)):
    rules = ScoreRules(forbidden=(FORBIDDEN,), discounted=discounted, chunk=chunk)
    return jax.jit(partial(measure_rows, rules=rules))(params, hidden, None, asked)


def counted(params, hidden, discounted=(DISCOUNTED,)):
    logits = np.array(all_logits(params, hidden), np.float64)
    logits[..., [FORBIDDEN, *discounted]] = -np.inf
    return logits


@pytest.mark.parametrize(
    "chunk", [7, *(pytest.param(n, marks=pytest.mark.slow) for n in (16, VOCAB))]
)
def test_every_chunk_size_measures_the_same(chunk):
    params, hidden = random_case(VOCAB, 8, 5, 2.0)
    _, before = random_case(VOCAB, 8, 5, 1.0)
    ids = jnp.asarray(np.random.default_rng(3).integers(-1, VOCAB, (2, 5, 3)), jnp.int32)
    asked = HeadRequest(
        top_k=4, n_classes=N_CLASSES, listed=ids, class_of=CLASS_OF, previous=before
    )
    scores, found = measure(params, hidden, asked, chunk)
    logits = counted(params, hidden)

    plain = score(params, hidden, None, ScoreRules((FORBIDDEN,), (DISCOUNTED,), chunk=chunk))
    np.testing.assert_array_equal(scores.token, plain.token)
    np.testing.assert_allclose(scores.confidence, plain.confidence, rtol=1e-5)
    np.testing.assert_allclose(found.log_sum_exp, logsumexp(logits, axis=-1), rtol=1e-5)
    best = np.argsort(-logits, axis=-1, kind="stable")[..., :4]
    np.testing.assert_array_equal(found.top_ids, best)
    np.testing.assert_allclose(
        found.top_logits, np.take_along_axis(logits, best, axis=-1), rtol=1e-5
    )
    listed = np.take_along_axis(logits, np.maximum(ids, 0), axis=-1)
    np.testing.assert_allclose(found.listed, np.where(ids < 0, -np.inf, listed), rtol=1e-5)
    for group in range(N_CLASSES):
        of_group = np.where(np.asarray(CLASS_OF) == group, logits, -np.inf)
        np.testing.assert_array_equal(found.class_ids[..., group], of_group.argmax(axis=-1))
        np.testing.assert_allclose(found.class_logits[..., group], of_group.max(axis=-1), rtol=1e-5)
    now, then = (log_softmax(each, axis=-1) for each in (logits, counted(params, before)))
    share = np.exp(now)
    moved = share * (np.where(share > 0, now, 0) - np.where(share > 0, then, 0))
    np.testing.assert_allclose(found.divergence, moved.sum(axis=-1), rtol=1e-4, atol=1e-5)


def test_nothing_has_moved_from_itself():
    params, hidden = random_case(VOCAB, 8, 5, 2.0)
    found = measure(params, hidden, HeadRequest(previous=hidden)).measured
    np.testing.assert_allclose(found.divergence, 0, atol=2e-6)
    assert found.top_ids is None and found.listed is None and found.class_ids is None


def test_added_logits_change_the_argmax_and_every_measure():
    params, hidden = random_case(VOCAB, 8, 5)
    logits = counted(params, hidden, ())
    best = logits.argmax(axis=-1)
    ids = jnp.stack([jnp.asarray(best), jnp.full(best.shape, 5)], axis=-1).astype(jnp.int32)
    added = jnp.broadcast_to(jnp.asarray([-jnp.inf, 0.5]), (*best.shape, 2))
    scores, found = measure(
        params, hidden, HeadRequest(top_k=1, listed=ids, added=added), discounted=()
    )
    np.put_along_axis(logits, best[..., None], -np.inf, axis=-1)
    logits[..., 5] += 0.5
    np.testing.assert_array_equal(scores.token, logits.argmax(axis=-1))
    np.testing.assert_array_equal(found.top_ids[..., 0], scores.token)
    np.testing.assert_allclose(found.log_sum_exp, logsumexp(logits, axis=-1), rtol=1e-5)
    expected = np.exp(log_softmax(logits, axis=-1).max(axis=-1))
    np.testing.assert_allclose(scores.confidence, expected, rtol=1e-5)


def test_only_requested_measures_are_computed():
    params, hidden = random_case(VOCAB, 8, 5)

    def flops(asked):
        rules = ScoreRules(chunk=VOCAB)
        program = jax.jit(partial(measure_rows, rules=rules)).lower(params, hidden, None, asked)
        return program.cost_analysis()["flops"]

    plain = jax.jit(score_rows, static_argnums=3).lower(
        params, hidden, None, ScoreRules(chunk=VOCAB)
    )
    least = plain.cost_analysis()["flops"]
    rows = hidden.shape[0] * hidden.shape[1]
    assert flops(HeadRequest()) == pytest.approx(least, abs=4 * rows)  # one logarithm a row
    product = 2 * rows * hidden.shape[2] * VOCAB
    assert flops(HeadRequest(previous=hidden)) >= least + product
