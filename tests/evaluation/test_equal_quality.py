"""Costs at equal quality: on curves whose points are known, and what chance makes of them."""

import numpy as np
import pytest

from llada_jax.evaluation.tally import Tally, brought_back, cost_at_equal_quality

N = 400


def tally(right: int, cost: int, first: int = 0) -> Tally:
    """So many right answers, from question `first` on; each question costs as much."""
    marks = tuple(first <= i < first + right for i in range(N))
    return Tally(marks, (cost,) * N, (1,) * N, rows=(32 * cost,) * N)


CURVE = [tally(200, 10), tally(300, 20), tally(320, 40)]


@pytest.mark.parametrize(
    ("right", "cost", "times"),
    [
        (200, 10, 1.0),
        (250, 15, 1.0),
        (250, 30, 2.0),
        (310, 15, 0.5),
        (400, 20, 0.5),  # beyond the dearest threshold
        (100, 20, 2.0),  # below the cheapest
    ],
)
@pytest.mark.parametrize("what", ["rows", "forwards"])
def test_costs_are_those_of_the_point_with_as_many_right_answers(right, cost, times, what):
    found = cost_at_equal_quality(tally(right, cost), CURVE, what)
    assert found.value == pytest.approx(times)
    assert found.interval.low <= found.value <= found.interval.high


def test_a_threshold_that_costs_more_and_answers_less_is_passed_over():
    curve = [tally(200, 10), tally(300, 20), tally(250, 30), tally(320, 40)]
    assert cost_at_equal_quality(tally(300, 20), curve, "rows").value == pytest.approx(1)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Of samples of a way that is exactly as good as the curve between its points."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(20):
        chances = rng.random(200)  # one for a question: ways agree on what is easy

        def way(quality: float, cost: int, chances: np.ndarray = chances) -> Tally:
            marks = tuple(bool(each) for each in chances < quality)
            return Tally(marks, (cost,) * 200, (1,) * 200)

        curve = [way(0.5, 10), way(0.7, 20), way(0.9, 30)]
        low, high = cost_at_equal_quality(way(0.6, 15), curve, "forwards").interval
        held += low <= 1 <= high
    assert held >= 17


def test_what_is_brought_back_is_a_share_of_what_was_lost():
    assert brought_back(tally(250, 1), tally(200, 1), tally(300, 1)).value == pytest.approx(0.5)
    assert brought_back(tally(310, 1), tally(200, 1), tally(300, 1)).value == pytest.approx(1.1)
    found = brought_back(tally(300, 1), tally(200, 1), tally(300, 1))
    assert found.interval == (1, 1)


def test_other_questions_and_missing_rows_are_refused():
    with pytest.raises(ValueError, match="allowed: all of the same"):
        cost_at_equal_quality(tally(2, 1)._replace(rows=()), CURVE, "rows")
    with pytest.raises(ValueError, match=r"\[1, 400, 400\] questions"):
        brought_back(Tally((True,), (1,), (1,)), CURVE[0], CURVE[1])
    with pytest.raises(ValueError, match="loses 0 answers; allowed: 1 or more"):
        brought_back(tally(2, 1), CURVE[0], CURVE[0])
