"""What repeated measurements say: their median and their quartiles."""

import statistics
from collections.abc import Iterator, Sequence

from experiments.harness.results import ResultRow
from llada_jax.config import require


def require_quartiles(repeats: int) -> None:
    """Raises ValueError for fewer repeats than quartiles need."""
    require(repeats > 1, f"repeats is {repeats}; allowed: 2 or more, of which quartiles are taken")


def spread(
    name: str, values: Sequence[float], unit: str, source: str | None = None
) -> Iterator[ResultRow]:
    """Yields the median and the quartiles."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    yield ResultRow(name, median, unit, n=len(values), source=source)
    yield ResultRow(f"{name}/lower_quartile", low, unit)
    yield ResultRow(f"{name}/upper_quartile", high, unit)
