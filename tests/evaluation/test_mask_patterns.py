"""Patterns of masked tokens: every one where that is affordable, else evenly spread draws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.evaluation.likelihood import (
    drawn_patterns,
    every_pattern,
    mask_counts,
    mask_patterns,
)

lengths = st.integers(1, 200)
budgets = st.integers(1, 300)


@given(lengths, budgets, st.data())
def test_every_count_is_drawn_equally_often(length, mc_num, data):
    offset = data.draw(st.integers(0, length - 1))
    times = np.bincount(mask_counts(length, mc_num, offset), minlength=length + 1)
    assert times[0] == 0 and times.sum() == mc_num
    assert set(times[1:]) <= {mc_num // length, -(-mc_num // length)}


@given(st.integers(1, 60), st.integers(1, 60))
def test_each_draw_is_uniform_over_the_offsets(length, mc_num):
    drawn = np.stack([mask_counts(length, mc_num, offset) for offset in range(length)])
    assert (np.sort(drawn, axis=0) == np.arange(1, length + 1)[:, None]).all()


@given(st.integers(8, 64), st.integers(1, 100), st.integers(0, 2**31))
def test_drawn_patterns_are_the_counts_with_their_weights(length, mc_num, seed):
    patterns = drawn_patterns(length, mc_num, np.random.default_rng(seed))
    counts = patterns.masked.sum(axis=1)
    assert len(np.unique(patterns.masked, axis=0)) == len(counts) <= mc_num
    times = patterns.weights * counts * mc_num / length
    np.testing.assert_allclose(times, times.round())
    offsets = [np.sort(mask_counts(length, mc_num, offset)) for offset in range(length)]
    drawn = np.sort(np.repeat(counts, times.round().astype(int)))
    assert any(np.array_equal(drawn, offset) for offset in offsets)


def test_drawn_weights_average_to_the_exact_ones():
    exact = every_pattern(3)
    mean = dict.fromkeys(map(bytes, exact.masked), 0.0)
    runs = 4000
    for seed in range(runs):
        for masked, weight in zip(*drawn_patterns(3, 5, np.random.default_rng(seed)), strict=True):
            mean[bytes(masked)] += weight / runs
    # A weight varies by less than its largest value, 3 / 1, so its mean by less than 0.05.
    np.testing.assert_allclose([mean[bytes(m)] for m in exact.masked], exact.weights, atol=0.05)


@pytest.mark.parametrize(("length", "mc_num", "is_exact"), [(7, 127, True), (7, 126, False)])
def test_all_patterns_are_taken_where_there_are_few(length, mc_num, is_exact):
    patterns = mask_patterns(length, mc_num, 0)
    assert (len(patterns.masked) == 127) == is_exact
    assert len(patterns.masked) <= mc_num


def test_one_token_needs_one_forward():
    patterns = mask_patterns(1, 128, 0)
    assert patterns.masked.tolist() == [[True]] and patterns.weights.tolist() == [1.0]


def test_equal_seeds_give_equal_patterns():
    one, same, other = (mask_patterns(20, 32, seed) for seed in (1, 1, 2))
    assert np.array_equal(one.masked, same.masked)
    assert not np.array_equal(one.masked, other.masked)
