"""Statistics of right and wrong answers: confidence intervals, comparison of two decoders on the
same items, and calibration (of tokens with confidence 80 %, are 80 % right?)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from llada_jax.config import require

Z = 1.959963984540054  # quantile of the normal distribution for a 95 % interval


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


class PairedComparison(NamedTuple):
    """Comparison of two decoders on the same `n` items."""

    difference: float
    """Share right of the second minus share right of the first."""
    interval: Interval
    """Confidence interval of the difference."""
    gained: int
    """Items that only the second got right."""
    lost: int
    """Items that only the first got right."""
    p_value: float
    """p-value of McNemar's exact test."""
    n: int


def wilson_interval(right: int, n: int) -> Interval:
    """Returns Wilson's score interval of a proportion (E. B. Wilson, JASA 22, 1927).

    The n trials must be independent: a question asked twice of a greedy decoder is one trial.
    """
    require(n > 0, f"n is {n}; allowed: 1 or more")
    require(0 <= right <= n, f"right is {right}; allowed: 0 to n ({n})")
    share = right / n
    middle = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    # The bounds for 0 and n right are exactly 0 and 1, which rounding can miss.
    return Interval(max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))


def mcnemar(gained: int, lost: int) -> float:
    """Returns the two-sided exact p-value of McNemar's test: if the decoders were equally good,
    each changed item would be gained or lost like a fair coin flip."""
    changed = gained + lost
    tail = sum(math.comb(changed, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**changed)


def paired(first: Sequence[bool], second: Sequence[bool]) -> PairedComparison:
    """Compares two decoders, item by item; no two items may ask the same question.

    The interval is Agresti and Min's: Wald's with half an item added to each cell (Statistics in
    Medicine 24, 2005), which keeps its coverage for few items.
    """
    require(
        len(first) == len(second) > 0,
        f"{len(first)} and {len(second)} items; allowed: the same items, at least one",
    )
    gained = sum(after and not before for before, after in zip(first, second, strict=True))
    lost = sum(before and not after for before, after in zip(first, second, strict=True))
    n = len(first)
    middle = (gained - lost) / (n + 2)
    variance = (gained + lost + 1 - (gained - lost) ** 2 / (n + 2)) / (n + 2) ** 2
    half = Z * math.sqrt(variance)
    interval = Interval(max(-1.0, middle - half), min(1.0, middle + half))
    return PairedComparison((gained - lost) / n, interval, gained, lost, mcnemar(gained, lost), n)


class Reliability(NamedTuple):
    """Predictions in bins of equal width by confidence; an empty bin has NaN means."""

    edges: Float[np.ndarray, " N+1"]  # bounds of the bins, from 0 to 1
    counts: Int[np.ndarray, " N"]  # predictions in each bin
    confidence: Float[np.ndarray, " N"]  # mean confidence in each bin
    accuracy: Float[np.ndarray, " N"]  # share of right predictions in each bin

    @property
    def expected_calibration_error(self) -> float:
        """The mean of |confidence - accuracy|, weighted by counts (Guo et al., ICML 2017)."""
        filled = self.counts > 0
        distance = np.abs(self.confidence - self.accuracy)[filled]
        return float(np.average(distance, weights=self.counts[filled]))

    def between(self, low: float, high: float) -> tuple[int, float, float]:
        """Returns number, mean confidence and share right of the predictions in (low, high]; the
        means are NaN if there are none. Raises ValueError if a bound is not an edge of a bin."""
        for bound in (low, high):
            require(
                bool(np.isclose(self.edges, bound).any()),
                f"a bound is {bound}; allowed: an edge of the {len(self.counts)} bins",
            )
        centers = (self.edges[1:] + self.edges[:-1]) / 2
        chosen = (centers > low) & (centers < high) & (self.counts > 0)
        counts = self.counts[chosen]
        if not counts.size:
            return 0, float("nan"), float("nan")
        confidence, accuracy = (
            float(np.average(x[chosen], weights=counts)) for x in (self.confidence, self.accuracy)
        )
        return int(counts.sum()), confidence, accuracy


def reliability(
    confidence: Float[np.ndarray, " P"], right: Bool[np.ndarray, " P"], bins: int = 15
) -> Reliability:
    """Sorts predictions into bins (i / bins, (i + 1) / bins].

    `confidence` is the probability of each prediction, 0 to 1; `right` is whether it was right.
    Raises ValueError for no predictions, different lengths, and values that are no probability.
    """
    confidence, right = np.asarray(confidence, np.float64), np.asarray(right, bool)
    require(bins > 0, f"bins is {bins}; allowed: 1 or more")
    require(
        confidence.shape == right.shape and confidence.ndim == 1 and confidence.size > 0,
        f"shapes are {confidence.shape} and {right.shape}; allowed: twice the same [P], not empty",
    )
    bad = confidence[~((confidence >= 0) & (confidence <= 1 + 1e-6))]
    require(not bad.size, f"a confidence is {bad[:1]}; allowed: 0 to 1")
    edges = np.linspace(0, 1, bins + 1)
    bin_index = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    counts = np.bincount(bin_index, minlength=bins)
    with np.errstate(invalid="ignore"):
        means = (
            np.bincount(bin_index, weights=values, minlength=bins) / counts
            for values in (confidence, right)
        )
        return Reliability(edges, counts, *means)
