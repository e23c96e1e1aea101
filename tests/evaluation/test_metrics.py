"""Statistics against published examples, properties, and the library that has them too."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from llada_jax.evaluation.metrics import mcnemar, paired, reliability, wilson_interval


@pytest.mark.parametrize(("right", "n"), [(0, 10), (10, 10), (81, 263), (465, 500), (1, 1)])
def test_wilson_matches_scipy(right, n):
    ours = wilson_interval(right, n)
    theirs = stats.binomtest(right, n).proportion_ci(method="wilson")
    assert ours == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_contains_the_share_and_stays_within_0_and_1(sample):
    right, n = sample
    low, high = wilson_interval(right, n)
    assert 0 <= low <= right / n <= high <= 1


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (5, 5), (1, 9), (12, 2), (300, 240)])
def test_mcnemar_matches_the_binomial_test(gained, lost):
    expected = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert mcnemar(gained, lost) == pytest.approx(expected)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_swapping_the_decoders_reverses_the_comparison(items):
    first, second = zip(*items, strict=True)
    there, back = paired(first, second), paired(second, first)
    assert there.difference == pytest.approx(sum(second) / len(items) - sum(first) / len(items))
    assert there.p_value == back.p_value
    assert there.interval == pytest.approx((-back.interval.high, -back.interval.low))
    assert -1 <= there.interval.low <= there.interval.high <= 1


def test_agresti_and_mins_interval_has_its_nominal_coverage():
    n, gain, loss = 40, 0.15, 0.05
    covered = 0.0
    for gained in range(n + 1):
        for lost in range(n + 1 - gained):
            first = [False] * gained + [True] * (n - gained)
            second = [True] * (n - lost) + [False] * lost
            low, high = paired(first, second).interval
            if low <= gain - loss <= high:
                covered += math.exp(
                    stats.multinomial.logpmf(
                        [gained, lost, n - gained - lost], n, [gain, loss, 1 - gain - loss]
                    )
                )
    assert 0.93 < covered < 0.99


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wilson_interval(0, 0), "n is 0; allowed: 1 or more"),
        (lambda: wilson_interval(3, 2), r"right is 3; allowed: 0 to n \(2\)"),
        (lambda: paired([True], []), "1 and 0 items; allowed: the same items, at least one"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


PREDICTIONS = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=80)


def test_a_worked_example():
    found = reliability(np.array([0.1, 0.2, 0.9, 0.95]), np.array([0, 1, 1, 0], bool), bins=2)
    np.testing.assert_array_equal(found.counts, [2, 2])
    np.testing.assert_allclose(found.confidence, [0.15, 0.925])
    np.testing.assert_allclose(found.accuracy, [0.5, 0.5])
    assert found.expected_calibration_error == pytest.approx((0.35 + 0.425) / 2)


def test_calibrated_predictions_have_no_calibration_error():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(size=200_000)
    honest = reliability(confidence, rng.uniform(size=confidence.size) < confidence)
    boasting = reliability(confidence, rng.uniform(size=confidence.size) < confidence**2)
    assert honest.expected_calibration_error < 0.01
    # The mean of p - p**2 over uniform p.
    assert boasting.expected_calibration_error == pytest.approx(1 / 6, abs=0.01)


@given(PREDICTIONS, st.integers(1, 20))
def test_predictions_are_binned_by_confidence(predictions, bins):
    confidence, right = map(np.array, zip(*predictions, strict=True))
    found = reliability(confidence, right, bins)
    assert found.counts.sum() == len(predictions)
    filled = found.counts > 0
    assert (found.confidence[filled] >= found.edges[:-1][filled] - 1e-12).all()
    assert (found.confidence[filled] <= found.edges[1:][filled] + 1e-12).all()
    assert np.isnan(found.accuracy[~filled]).all()
    assert 0 <= found.expected_calibration_error <= 1


@pytest.mark.parametrize(
    ("confidence", "right", "message"),
    [
        ([], [], r"shapes are \(0,\) and \(0,\); allowed"),
        ([0.5], [True, False], r"shapes are \(1,\) and \(2,\); allowed"),
        ([np.nan], [True], r"a confidence is \[nan\]; allowed: 0 to 1"),
        ([1.5], [True], r"a confidence is \[1.5\]; allowed: 0 to 1"),
    ],
)
def test_bad_predictions_are_named(confidence, right, message):
    with pytest.raises(ValueError, match=message):
        reliability(np.array(confidence), np.array(right))


def test_a_band_joins_its_bins():
    confidence = np.array([0.72, 0.78, 0.88, 0.95, 0.4])
    found = reliability(confidence, np.array([True, False, True, True, False]), bins=20)
    count, mean, right = found.between(0.7, 0.9)
    assert count == 3
    np.testing.assert_allclose([mean, right], [confidence[:3].mean(), 2 / 3])
    assert found.between(0.5, 0.7)[0] == 0
    with pytest.raises(ValueError, match=r"a bound is 0\.7; allowed: an edge of the 15 bins"):
        reliability(confidence, confidence > 0.5).between(0.7, 0.9)
