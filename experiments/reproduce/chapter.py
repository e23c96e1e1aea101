"""A chapter of the report: rows with references and errors, reasons in words, and a picture's data.

All values are modelled; `fitted` says of each row whether its reference went into the calibration.
"""

from dataclasses import dataclass, field
from typing import Any

from experiments.harness.estimates import Estimate
from experiments.harness.results import ResultRow

PAPER = "arXiv 2606.13740"

TASKS = ("GSM8K", "BoolQ", "ARC-C", "HellaSwag")

LENGTHS = (32, 64, 128)

SOCS = ("SM8750", "SM8850", "SM8650")

ONE_A_STEP = "one token a forward"


@dataclass(frozen=True)
class Chapter:
    """One table or figure of the report."""

    name: str
    title: str
    rows: list[ResultRow]
    words: list[str] = field(default_factory=list)
    parts: dict[str, dict[str, float]] = field(default_factory=dict)
    """Seconds by cause of some runs, for stacked bars."""


def modelled(name: str, value: float | Estimate, unit: str, **more: Any) -> ResultRow:
    """Returns a row; a mean has the interval and the number of its runs."""
    if isinstance(value, Estimate):
        more |= {"n": value.n, "interval": value.interval}
        value = value.value
    return ResultRow(name=name, value=value, unit=unit, kind="modelled", **more)
