"""Means over repeated runs with standard errors, and differences and ratios of paired runs."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from scipy.special import stdtrit

from llada_jax.config import require


class Estimate(NamedTuple):
    """A mean over `n` runs."""

    value: float
    error: float
    """Its standard error; infinite for a single run."""
    n: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """Returns the 95 % interval, by Student's distribution; None for a single run."""
        if self.n < 2:
            return None
        half = float(stdtrit(self.n - 1, 0.975)) * self.error  # Student's 97.5 % quantile
        return self.value - half, self.value + half

    def __str__(self) -> str:
        """Returns the mean and half the width of its interval."""
        if self.interval is None:
            return f"{self.value:.2f} (one run)"
        return f"{self.value:.2f} ± {self.interval[1] - self.value:.2f}"


def mean_of(values: Sequence[float]) -> Estimate:
    """Returns the mean of runs. Raises ValueError if there are none."""
    n = len(values)
    require(n > 0, "there are no runs; allowed: 1 or more")
    return Estimate(fmean(values), stdev(values) / math.sqrt(n) if n > 1 else math.inf, n)


def difference(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """Returns the mean of the differences of runs that share their seeds."""
    return mean_of([a - b for a, b in zip(values, others, strict=True)])


def ratio(values: Sequence[float], others: Sequence[float]) -> Estimate:
    """Returns the ratio of two means over runs of the same seeds (the error is to first order)."""
    below = mean_of(others).value
    value = mean_of(values).value / below
    residuals = [(a - value * b) / below for a, b in zip(values, others, strict=True)]
    return mean_of(residuals)._replace(value=value)
