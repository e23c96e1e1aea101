"""What a way of decoding costs beside thresholds of equal quality, and how much it brings back.

Thresholds that commit for good are a curve from cheap and wrong to dear and right. A way that
revises pays where it costs less than the point of that curve with as many right answers. All ways
answer the same questions; intervals are of 95 %, by a bootstrap of the questions.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from llada_jax.config import require
from llada_jax.evaluation.metrics import Interval
from llada_jax.evaluation.tally import Tally

Cost = Literal["rows", "forwards"]
_RESAMPLES = 2000


class Estimate(NamedTuple):
    """A number, with its interval."""

    value: float
    interval: Interval


def cost_at_equal_quality(found: Tally, curve: Sequence[Tally], cost: Cost) -> Estimate:
    """Returns what `found` costs, in times the cost of a threshold of equal quality.

    Between two thresholds the curve is linear; one that answers no more than a cheaper one is none
    of it. What lies beyond an end of the curve is compared with that end.

    Args:
      curve: thresholds that commit for good, from the cheapest on.
      cost: which entry of a tally is added up.

    Raises ValueError where a tally is of other questions, or has no such entry.
    """
    _require_same_questions([found, *curve], cost)
    right, costs = _right(found), np.asarray(getattr(found, cost), float)
    rights = np.stack([_right(each) for each in curve])
    curve_costs = np.asarray([getattr(each, cost) for each in curve], float)

    def times(questions: Int[np.ndarray, " n"]) -> float:
        quality = rights[:, questions].mean(axis=1)
        best_before = np.maximum.accumulate([-1.0, *quality[:-1]])
        better = quality > best_before
        curve_cost = curve_costs[:, questions].mean(axis=1)[better]
        equal = np.interp(right[questions].mean(), quality[better], curve_cost)
        return float(costs[questions].mean() / equal)

    return _bootstrapped(times, len(right))


def brought_back(found: Tally, low: Tally, high: Tally) -> Estimate:
    """Returns the share that `found` brings back of the answers that `low` loses against `high`.

    Raises ValueError where a tally is of other questions, or `low` loses nothing.
    """
    _require_same_questions([found, low, high], "forwards")
    lost, gained = _right(high) - _right(low), _right(found) - _right(low)
    require(lost.sum() > 0, f"the lower one loses {lost.sum():.0f} answers; allowed: 1 or more")

    def share(questions: Int[np.ndarray, " n"]) -> float:
        costs = lost[questions].sum()
        return float(gained[questions].sum() / costs) if costs > 0 else float("inf")

    return _bootstrapped(share, len(lost))


def _right(tally: Tally) -> Float[np.ndarray, " n"]:
    return np.asarray(tally.right, float)


def _require_same_questions(tallies: Sequence[Tally], cost: Cost) -> None:
    counts = [len(each.right) for each in tallies]
    known = [len(getattr(each, cost)) for each in tallies]
    require(
        len({*counts, *known}) == 1,
        f"right answers of {counts} questions and {cost} of {known}; allowed: all of the same",
    )


def _bootstrapped(statistic: Callable[[Int[np.ndarray, " n"]], float], n: int) -> Estimate:
    rng = np.random.default_rng(0)
    drawn = [statistic(rng.integers(n, size=n)) for _ in range(_RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(statistic(np.arange(n)), Interval(float(low), float(high)))
