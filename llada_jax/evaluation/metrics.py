"""Statistics of right and wrong answers: how sure a score is, and whether two differ."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from llada_jax.config import require

Z = 1.959963984540054  # of a 95 % interval


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


class Paired(NamedTuple):
    """Two decoders on the same `n` items."""

    difference: float
    """Share right of the second minus share right of the first."""
    interval: Interval
    """Of the difference."""
    gained: int
    """Items that only the second got right."""
    lost: int
    """Items that only the first got right."""
    p_value: float
    """Of McNemar's exact test."""
    n: int


def wilson_interval(right: int, n: int, z: float = Z) -> Interval:
    """Returns Wilson's score interval of a proportion (E. B. Wilson, JASA 22, 1927).

    The n trials are independent: a question that is asked twice, and answered alike, is one.
    """
    require(n > 0, f"n is {n}; allowed: 1 or more")
    require(0 <= right <= n, f"right is {right}; allowed: 0 to n ({n})")
    share = right / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # The bounds of 0 and n are 0 and 1, which rounding can miss.
    return Interval(max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)))


def mcnemar(gained: int, lost: int) -> float:
    """Returns the two-sided exact p-value of McNemar's test: a fair coin for each changed item."""
    changed = gained + lost
    tail = sum(math.comb(changed, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**changed)


def paired(first: Sequence[bool], second: Sequence[bool]) -> Paired:
    """Compares two decoders, item by item. No two items ask the same question, as in
    `wilson_interval`.

    The interval is Agresti and Min's: Wald's with half an item added to each cell (Statistics in
    Medicine 24, 2005), which holds its level for few items too.
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
    return Paired((gained - lost) / n, interval, gained, lost, mcnemar(gained, lost), n)
