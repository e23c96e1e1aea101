"""What the suite `rivals` says besides: spreads, counts, the machine, and who is left out."""

import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.harness.results import ResultRow
from llada_jax.config import ModelConfig
from llada_jax.model.params import named_specs


def spread(
    name: str, values: Sequence[float], unit: str, source: str | None = None
) -> Iterator[ResultRow]:
    """Yields the median and the quartiles."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    yield ResultRow(name, median, unit, n=len(values), source=source)
    yield ResultRow(f"{name}/lower_quartile", low, unit)
    yield ResultRow(f"{name}/upper_quartile", high, unit)


def multiplied(model: ModelConfig) -> int:
    """Counts the weights that every row is multiplied with, the head's included."""
    specs = named_specs(model)
    return sum(spec.size for name, spec in specs.items() if len(spec.shape) > 1) - (
        0 if model.tied_embeddings else specs["embedding"].size
    )


def instruction_sets() -> str:
    """Names the units of this CPU that multiply narrow numbers, as Linux does."""
    known = ("avx2", "vnni", "bf16", "amx", "i8mm", "asimddp")
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    lines = [line for line in text.splitlines() if line.startswith(("flags", "Features"))]
    words = sorted(set(lines[0].split())) if lines else []
    return " ".join(word for word in words if any(each in word for each in known)) or "unknown"


def left_out(name: str, why: str) -> None:
    """Says in a line who is not timed."""
    print(f"left out: {name}: {why}", file=sys.stderr)
