"""The streamed head against a softmax over the whole vocabulary in float64."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from llada_jax.model.head import ScoreRules, gumbel_noise, logits_of, score_rows
from llada_jax.model.params import ModelParams
from llada_jax.model.quantize import quantize
from llada_jax.types import Scores

LLADA_VOCAB = 126_464
VOCAB = 41
CHUNKS = (1, 7, 16, 41, 8192)

score = jax.jit(score_rows, static_argnums=3)
all_logits = jax.jit(logits_of)


class Expected(NamedTuple):
    """`Scores` by the textbook, float64."""

    token: np.ndarray
    confidence: np.ndarray
    entropy: np.ndarray
    margin: np.ndarray


def direct(
    logits: np.ndarray, forbidden: tuple[int, ...] = (), discounted: tuple[int, ...] = ()
) -> Expected:
    logits = logits.astype(np.float64)
    logits[..., list(forbidden)] = -np.inf
    token = logits.argmax(axis=-1)
    logits[..., list(discounted)] = -np.inf
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    ordered = np.sort(shares, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(shares > 0, shares * np.log(shares), 0).sum(axis=-1)
    confidence = np.take_along_axis(shares, token[..., None], axis=-1)[..., 0]
    return Expected(token, confidence, entropy, ordered[..., -1] - ordered[..., -2])


def params_with_head(head: np.ndarray) -> ModelParams:
    weight = jnp.asarray(head)
    return ModelParams(weight, (), jnp.ones(head.shape[1]), weight)


@functools.cache
def random_case(
    vocab: int, width: int, rows: int, scale: float = 1.0
) -> tuple[ModelParams, jax.Array]:
    rng = np.random.default_rng(vocab + width)
    head = rng.standard_normal((vocab, width)).astype(np.float32)
    hidden = scale * rng.standard_normal((2, rows, width)).astype(np.float32)
    return params_with_head(head), jnp.asarray(hidden)


def assert_scores(scores: Scores, expected: Expected, largest_logit: float) -> None:
    # Rounding of a chunk's logits depends on the chunk's shape, so the last bit differs.
    atol = 4 * np.finfo(np.float32).eps * (4 + largest_logit)
    np.testing.assert_array_equal(scores.token, expected.token)
    np.testing.assert_allclose(scores.confidence, expected.confidence, rtol=2e-5, atol=atol)
    np.testing.assert_allclose(scores.entropy, expected.entropy, rtol=2e-5, atol=5 * atol)
    np.testing.assert_allclose(scores.margin, expected.margin, rtol=2e-5, atol=atol)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("scale", [0.02, 1.0, 8.0])
def test_every_chunk_size_gives_the_softmax(chunk: int, scale: float) -> None:
    params, hidden = random_case(VOCAB, 8, 5, scale)
    logits = np.asarray(all_logits(params, hidden))
    scores = score(params, hidden, None, ScoreRules(chunk=chunk))
    assert {leaf.dtype.name for leaf in scores} == {"int32", "float32"}
    assert_scores(scores, direct(logits), np.abs(logits).max())


@pytest.mark.parametrize("chunk", [7, 41])
def test_forbidden_and_discounted_ids(chunk: int) -> None:
    params, hidden = random_case(VOCAB, 8, 5, 3.0)
    logits = np.asarray(all_logits(params, hidden))
    best = [int(token) for token in np.unique(logits.argmax(axis=-1))]
    forbidden, discounted = tuple(best[:3]), tuple(best[3:6])
    rules = ScoreRules(forbidden=forbidden, discounted=discounted, chunk=chunk)
    scores = score(params, hidden, None, rules)
    assert_scores(scores, direct(logits, forbidden, discounted), np.abs(logits).max())
    assert not np.isin(scores.token, forbidden).any()
    of_discounted = np.isin(scores.token, discounted)
    assert of_discounted.any()
    assert (np.asarray(scores.confidence)[of_discounted] == 0).all()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_the_lowest_id_wins_ties(data: st.DataObject) -> None:
    levels = data.draw(st.lists(st.integers(0, 2), min_size=12, max_size=12), "logits")
    forbidden = data.draw(st.sampled_from([(), (0, 1, 6)]), "forbidden")
    chunk = data.draw(st.sampled_from([4, 5, 12]), "chunk")
    params = params_with_head(np.array(levels, np.float32)[:, None])
    rules = ScoreRules(forbidden=forbidden, chunk=chunk)
    scores = score(params, jnp.ones((1, 1, 1)), None, rules)
    assert_scores(scores, direct(np.array([[levels]], np.float64), forbidden), 2)


def test_float64_confidence() -> None:
    with jax.enable_x64(True):
        # Products of eighths are exact in float32 for any order of summation.
        params, hidden = jax.tree.map(lambda x: jnp.round(8 * x) / 8, random_case(VOCAB, 8, 3))
        rules = ScoreRules(confidence_dtype="float64", chunk=16)
        scores = score(params, hidden, None, rules)
        assert scores.confidence.dtype == np.float64
        expected = direct(np.asarray(all_logits(params, hidden)))
        np.testing.assert_allclose(scores.confidence, expected.confidence, rtol=1e-12)
        np.testing.assert_allclose(scores.entropy, expected.entropy, rtol=1e-12)
        np.testing.assert_allclose(scores.margin, expected.margin, rtol=1e-11)


def test_a_quantized_head_is_also_streamed() -> None:
    params, hidden = random_case(VOCAB, 32, 5)
    for bits in (8, 4):
        quantized = params._replace(head=quantize(np.asarray(params.head), bits))
        logits = np.asarray(all_logits(quantized, hidden))
        scores = score(quantized, hidden, None, ScoreRules(chunk=16))
        assert_scores(scores, direct(logits), np.abs(logits).max())


def test_tied_embeddings_are_the_head() -> None:
    params, hidden = random_case(VOCAB, 8, 5)
    tied = params._replace(head=None)
    expected = score(params, hidden, None, ScoreRules())
    for found, leaf in zip(score(tied, hidden, None, ScoreRules()), expected, strict=True):
        np.testing.assert_array_equal(found, leaf)


@pytest.mark.parametrize("chunk", [4, 12])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_samples_follow_the_softmax(temperature: float, chunk: int) -> None:
    n_samples = 6000
    logits = np.random.default_rng(1).standard_normal(12).astype(np.float32)
    params = params_with_head(logits[:, None])
    keys = jax.random.split(jax.random.key(7), (1, n_samples))
    rules = ScoreRules(temperature=temperature, forbidden=(3,), chunk=chunk)
    scores = score(params, jnp.ones((1, n_samples, 1)), keys, rules)
    shares = np.exp(logits.astype(np.float64) / temperature)
    shares[3] = 0
    expected = n_samples * shares / shares.sum()
    counts = np.bincount(np.asarray(scores.token)[0], minlength=12)
    assert counts[3] == 0
    likely = expected >= 5
    observed = np.append(counts[likely], counts[~likely].sum())
    wanted = np.append(expected[likely], expected[~likely].sum())
    assert chisquare(observed[wanted > 0], wanted[wanted > 0]).pvalue > 1e-3
    # Confidence comes from the distribution without noise or temperature.
    plain = direct(logits[None], (3,)).confidence.max()
    of_best = np.asarray(scores.token)[0] == direct(logits[None], (3,)).token
    np.testing.assert_allclose(np.asarray(scores.confidence)[0, of_best], plain, rtol=1e-5)


def test_noise_of_a_row_does_not_depend_on_other_rows() -> None:
    params, hidden = random_case(VOCAB, 8, 5)
    keys = jax.random.split(jax.random.key(0), (2, 5))
    rules = ScoreRules(temperature=1.0)
    together = score(params, hidden, keys, rules)
    alone = score(params, hidden[:, 2:3], keys[:, 2:3], rules)
    np.testing.assert_array_equal(together.token[:, 2:3], alone.token)


def test_gumbel_noise_of_a_large_vocabulary() -> None:
    keys = jax.random.split(jax.random.key(3), (1, 8))
    noise = np.asarray(gumbel_noise(keys, 0, LLADA_VOCAB, "float32"), np.float64)
    assert np.isfinite(noise).all()
    assert abs(noise.mean() - np.euler_gamma) < 0.005
    assert abs(noise.var() - np.pi**2 / 6) < 0.02
    # The largest of V draws is Gumbel again, shifted by log V. Eight of them: within 4 deviations.
    shifted = noise.max(axis=-1) - np.log(LLADA_VOCAB)
    assert abs(shifted.mean() - np.euler_gamma) < 4 * np.pi / np.sqrt(6 * shifted.size)


@pytest.mark.parametrize("scale", [0.0, 1.0, 3e3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scores_are_finite_for_the_vocabulary_of_llada(scale: float, temperature: float) -> None:
    params, hidden = random_case(LLADA_VOCAB, 4, 2, scale)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    keys = jax.random.split(jax.random.key(0), (2, 2)) if temperature else None
    mask_id = LLADA_VOCAB - 128
    rules = ScoreRules((mask_id,), (5,), temperature, chunk=1 << 15)
    scores = score(params, hidden.astype(jnp.bfloat16), keys, rules)
    assert all(np.isfinite(leaf).all() for leaf in scores)
    assert ((scores.token >= 0) & (scores.token < LLADA_VOCAB)).all()
    assert ((scores.confidence >= 0) & (scores.confidence <= 1 + 1e-5)).all()
    assert ((scores.margin >= 0) & (scores.margin <= 1 + 1e-5)).all()
    assert ((scores.entropy > -1e-4) & (scores.entropy < np.log(LLADA_VOCAB) + 1e-3)).all()
    if scale == 0:
        np.testing.assert_allclose(scores.entropy, np.log(LLADA_VOCAB - 2), rtol=1e-5)
