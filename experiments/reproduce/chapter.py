"""A chapter of the report: rows with references and errors, reasons in words, and a picture's data.

All values are modelled; `fitted` says of each row whether its reference went into the calibration.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.harness.estimates import Estimate
from experiments.harness.results import Kind, ResultRow
from llada_jax.config_files import read_yaml

PAPER = "arXiv 2606.13740"
TASKS = ("GSM8K", "BoolQ", "ARC-C", "HellaSwag")
LENGTHS = (32, 64, 128)
SOCS = ("SM8750", "SM8850", "SM8650")

TEXTS = read_yaml(Path(__file__).with_name("chapters.yaml"))
"""Of each chapter its title and words."""

Parts = dict[str, dict[str, float]]
"""Seconds by cause of some runs, for stacked bars."""


@dataclass(frozen=True)
class Chapter:
    """One table or figure of the report."""

    title: str
    rows: list[ResultRow]
    words: list[str]
    parts: Parts


def chapter(
    name: str,
    rows: Sequence[ResultRow],
    words: Sequence[str] = (),
    parts: Parts | None = None,
    **values: Any,
) -> Chapter:
    """Returns a chapter: its own words, then those of `chapters.yaml`, with these values in."""
    told = [text.format(**values) for text in TEXTS[name]["words"]]
    return Chapter(TEXTS[name]["title"], list(rows), [*words, *told], parts or {})


def is_close(row: ResultRow) -> bool:
    """Tells whether a row is within 15 % of its reference."""
    return abs(row.error or 0.0) <= 0.15


def modelled(
    name: str,
    value: float | Estimate,
    unit: str,
    *,
    fitted: bool | None = None,
    kind: Kind = "modelled",
    **more: Any,
) -> ResultRow:
    """Returns a row; a mean has the interval and the number of its runs.

    `kind`: "informed" or "repeated", where the reference was not fitted and yet tests nothing.
    """
    if isinstance(value, Estimate):
        more |= {"n": value.n, "interval": value.interval}
        value = value.value
    if kind == "modelled":
        more["fitted"] = fitted
    return ResultRow(name=name, value=value, unit=unit, kind=kind, **more)
