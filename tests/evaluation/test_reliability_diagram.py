"""Calibration: known cases, and what holds for all predictions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.evaluation.metrics import reliability

PREDICTIONS = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=80)


def test_a_worked_example():
    found = reliability(np.array([0.1, 0.2, 0.9, 0.95]), np.array([0, 1, 1, 0], bool), bins=2)
    np.testing.assert_array_equal(found.counts, [2, 2])
    np.testing.assert_allclose(found.confidence, [0.15, 0.925])
    np.testing.assert_allclose(found.accuracy, [0.5, 0.5])
    assert found.expected_calibration_error == pytest.approx((0.35 + 0.425) / 2)


def test_predictions_as_often_right_as_they_say_have_no_error():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(size=200_000)
    honest = reliability(confidence, rng.uniform(size=confidence.size) < confidence)
    boasting = reliability(confidence, rng.uniform(size=confidence.size) < confidence**2)
    assert honest.expected_calibration_error < 0.01
    # The mean of p - p**2 over uniform p.
    assert boasting.expected_calibration_error == pytest.approx(1 / 6, abs=0.01)


@given(PREDICTIONS, st.integers(1, 20))
def test_every_prediction_is_in_the_bin_of_its_confidence(predictions, bins):
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
def test_bad_input_is_named(confidence, right, message):
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
