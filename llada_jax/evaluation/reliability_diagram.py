"""Whether confidence means what it says: of tokens held 80 % likely, are 80 % right?"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from llada_jax.config import require


class Reliability(NamedTuple):
    """Predictions in bins of equal width by confidence; a bin without any has NaN means."""

    edges: Float[np.ndarray, " N+1"]
    """Of the bins, from 0 to 1."""
    counts: Int[np.ndarray, " N"]
    """Predictions in each bin."""
    confidence: Float[np.ndarray, " N"]
    """Their mean confidence."""
    accuracy: Float[np.ndarray, " N"]
    """The share of them that is right."""

    @property
    def expected_calibration_error(self) -> float:
        """Returns the mean distance of confidence and accuracy, by counts (Guo, ICML 2017)."""
        filled = self.counts > 0
        distance = np.abs(self.confidence - self.accuracy)[filled]
        return float(np.average(distance, weights=self.counts[filled]))

    def between(self, low: float, high: float) -> tuple[int, float, float]:
        """Returns of the predictions in (low, high] their number, mean confidence and the share of
        them that is right; NaN for none. Raises ValueError where a bin crosses a bound."""
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

    `confidence` is the probability of each prediction, 0 to 1; `right` says whether it was right.
    Raises ValueError for no predictions, lengths that differ, and what is no probability.
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
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        means = (
            np.bincount(place, weights=x, minlength=bins) / counts for x in (confidence, right)
        )
        return Reliability(edges, counts, *means)
