"""Scores of generations: repeated questions count once; costs at equal quality."""

import numpy as np
import pytest

from llada_jax.evaluation.generations import Generation
from llada_jax.evaluation.metrics import wilson_interval
from llada_jax.evaluation.tally import (
    Tally,
    cost_at_equal_quality,
    joined,
    tally,
)
from llada_jax.evaluation.task import Item


def generation(index: int, question: str) -> Generation:
    return Generation(index, Item(question, "", ""), "", [], length=10 + index, nfe=1 + index)


def test_repeated_questions_count_once():
    asked = [generation(2, "a"), generation(0, "a"), generation(1, "b"), generation(3, "b")]
    rows = {0: 40, 1: 60, 2: 70, 3: 80}
    strict = {0: False, 1: False, 2: False, 3: True}
    right = strict | {0: True}
    found = tally(asked, right, block_length=10, rows=rows, strict=strict)
    parts = (True, False), (1, 2), (10, 11), (1, 2), (40, 60), (False, False)
    assert found == Tally(*parts, repeated=2)
    assert (found.strict_match, found.strict_interval) == (0, wilson_interval(0, 2))
    assert (found.forwards_per_block, found.row_forwards) == (1, 50)
    assert (found.items, found.exact_match, found.nfe) == (4, 0.5, 1.5)
    assert found.interval == wilson_interval(1, 2)


def test_tasks_are_joined_question_by_question():
    one = Tally((True,), (2,), (9,), (1,), (32,), repeated=3)
    other = Tally((False, False), (4, 6), (8, 7), (1, 2), (64, 96))
    both = joined([one, other])
    lists = (True, False, False), (2, 4, 6), (9, 8, 7), (1, 1, 2), (32, 64, 96)
    assert both == Tally(*lists, repeated=3)
    assert both.items == 6 and both.strict_match is None
    assert joined([one._replace(strict=(True,)), other]).strict_match is None, "of one task only"


def test_a_score_is_a_mean_over_items():
    mixed = Tally((True, False, True, True), (1, 2, 3, 4), (10, 10, 20, 20))
    assert (mixed.exact_match, mixed.nfe, mixed.tpf) == (0.75, 2.5, 6)
    low, high = mixed.interval
    assert 0 < low < 0.75 < high < 1


N = 400


def tally_of(right: int, cost: int, first: int = 0) -> Tally:
    """So many right answers, from question `first` on; each question costs as much."""
    marks = tuple(first <= i < first + right for i in range(N))
    return Tally(marks, (cost,) * N, (1,) * N, rows=(32 * cost,) * N)


CURVE = [tally_of(200, 10), tally_of(300, 20), tally_of(320, 40)]


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
def test_cost_ratio_is_relative_to_the_curve_at_equal_quality(right, cost, times):
    found = cost_at_equal_quality(tally_of(right, cost), CURVE)
    assert found.value == pytest.approx(times)
    assert found.interval.low <= found.value <= found.interval.high


def test_dominated_thresholds_are_left_out_of_the_curve():
    curve = [tally_of(200, 10), tally_of(300, 20), tally_of(250, 30), tally_of(320, 40)]
    assert cost_at_equal_quality(tally_of(300, 20), curve).value == pytest.approx(1)


def test_bootstrap_intervals_have_their_nominal_coverage():
    """Of samples of a way that is exactly as good as the curve between its points."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(20):
        chances = rng.random(200)  # one per question: all decoders find the same questions easy

        def way(quality: float, cost: int, chances: np.ndarray = chances) -> Tally:
            marks = tuple(bool(each) for each in chances < quality)
            return Tally(marks, (cost,) * 200, (1,) * 200, rows=(cost,) * 200)

        curve = [way(0.5, 10), way(0.7, 20), way(0.9, 30)]
        low, high = cost_at_equal_quality(way(0.6, 15), curve).interval
        held += low <= 1 <= high
    assert held >= 17


def test_other_questions_and_missing_rows_are_refused():
    with pytest.raises(ValueError, match="allowed: all of the same"):
        cost_at_equal_quality(tally_of(2, 1)._replace(rows=()), CURVE)
    with pytest.raises(ValueError, match=r"\[1, 400, 400\] questions"):
        cost_at_equal_quality(Tally((True,), (1,), (1,), rows=(32,)), CURVE[:2])
