"""Statistics against published examples, properties, and the library that has them too."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from llada_jax.evaluation.metrics import mcnemar, paired, wilson_interval


@pytest.mark.parametrize(("right", "n"), [(0, 10), (10, 10), (81, 263), (465, 500), (1, 1)])
def test_wilson_is_scipys(right, n):
    ours = wilson_interval(right, n)
    theirs = stats.binomtest(right, n).proportion_ci(method="wilson")
    assert ours == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share_and_stays_a_share(sample):
    right, n = sample
    low, high = wilson_interval(right, n)
    assert 0 <= low <= right / n <= high <= 1


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (5, 5), (1, 9), (12, 2), (300, 240)])
def test_mcnemar_is_the_binomial_test(gained, lost):
    expected = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert mcnemar(gained, lost) == pytest.approx(expected)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_a_pair_of_decoders_swapped_is_the_same_comparison_reversed(items):
    first, second = zip(*items, strict=True)
    there, back = paired(first, second), paired(second, first)
    assert there.difference == pytest.approx(sum(second) / len(items) - sum(first) / len(items))
    assert there.p_value == back.p_value
    assert there.interval == pytest.approx((-back.interval.high, -back.interval.low))
    assert -1 <= there.interval.low <= there.interval.high <= 1


def test_agresti_and_mins_interval_covers_the_truth_as_often_as_it_says():
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
