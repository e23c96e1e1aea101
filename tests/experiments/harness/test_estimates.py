"""Means of runs, their errors, and the differences that they can show."""

import math

import numpy as np
import pytest

from experiments.harness.estimates import Estimate, difference, mean_of, ratio


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(3, 3.182), (7, 2.365), (23, 2.069), (200, 1.972)]
)
def test_students_quantile_golden(freedom, quantile):
    assert Estimate(0, 1, freedom + 1).interval[1] == pytest.approx(quantile, rel=0.012)


def test_a_mean_golden():
    found = mean_of([1.0, 2.0, 3.0, 4.0])
    assert (found.value, found.n) == (2.5, 4)
    assert found.error == pytest.approx(math.sqrt(5 / 3 / 4))
    assert found.interval[0] > 0
    assert str(found).startswith("2.50 ± 2.0")


def test_a_single_run_has_no_interval():
    found = mean_of([5.0])
    assert found.interval is None
    assert str(found) == "5.00 (one run)"
    with pytest.raises(ValueError, match="there are no runs"):
        mean_of([])


def test_paired_differences_are_more_precise_than_means():
    rng = np.random.default_rng(0)
    common = rng.normal(10, 3, 24)
    slower = common + 0.2 + rng.normal(0, 0.1, 24)
    assert difference(slower.tolist(), common.tolist()).interval[0] > 0
    assert difference(common.tolist(), common.tolist()).interval == (0, 0)
    alone = mean_of(slower.tolist()).interval
    assert alone is not None and alone[0] < common.mean() < alone[1]


def test_intervals_contain_the_truth_in_nineteen_of_twenty_runs():
    rng = np.random.default_rng(1)
    held = {"mean": 0, "ratio": 0}
    for _ in range(2000):
        below = rng.normal(10, 1, 24)
        above = 1.2 * below + rng.normal(0, 1, 24)
        estimates = {
            "mean": mean_of(above.tolist()),
            "ratio": ratio(above.tolist(), below.tolist()),
        }
        for name, truth in (("mean", 12.0), ("ratio", 1.2)):
            low, high = estimates[name].interval or (0, 0)
            held[name] += low <= truth <= high
    assert held["mean"] / 2000 == pytest.approx(0.95, abs=0.02)
    assert held["ratio"] / 2000 == pytest.approx(0.95, abs=0.02)
