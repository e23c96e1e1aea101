"""A chapter of the report: result rows with references, errors and 95 % bands, and explanations.

The band of a latency comes from the uncertainty of each of the profile's numbers; in the ratio of
two latencies, uncertainties that both share cancel.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from experiments.harness.estimates import Estimate
from experiments.harness.results import ResultRow
from llada_jax.config_files import read_yaml
from llada_jax.phones.phone import Phone
from llada_jax.phones.profile import load_profile
from llada_jax.phones.published_tasks import CANVAS
from llada_jax.phones.system import System
from llada_jax.phones.uncertainty import TWO_SIDED, RunTimer

PAPER = "arXiv 2606.13740"
TASKS = ("GSM8K", "BoolQ", "ARC-C", "HellaSwag")
LENGTHS = (32, 64, 128)
TYPICAL = "/typical_session"
"""Suffix of times in a typical session, as `Phone.time` returns them by default, of rows that are
compared in a session whose state is known."""
SOCS = ("SM8750", "SM8850", "SM8650")

TEXTS = read_yaml(Path(__file__).with_name("chapters.yaml"))
"""Title and explanations of each chapter."""


@dataclass(frozen=True)
class Chapter:
    """One table or figure of the report."""

    title: str
    rows: list[ResultRow]
    words: list[str]
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Seconds by cause, for some runs."""


def chapter(
    name: str, rows: Sequence[ResultRow], words: Sequence[str] = (), **values: Any
) -> Chapter:
    """Returns a chapter with `words`, then the texts of `chapters.yaml` filled with `values`."""
    texts = [text.format(**values) for text in TEXTS[name]["words"]]
    return Chapter(TEXTS[name]["title"], list(rows), [*words, *texts])


def is_close(row: ResultRow) -> bool:
    """Returns whether a row is within 15 % of its reference."""
    return abs(row.error or 0.0) <= 0.15


def modelled(name: str, value: float | Estimate, unit: str, **fields: Any) -> ResultRow:
    """Returns a modelled row; a mean has an interval and the number of runs. Its kind is "informed"
    or "repeated" if the reference was not fitted to but still does not test the model."""
    if isinstance(value, Estimate):
        fields |= {"n": value.n, "interval": value.interval}
        value = value.value
    if fields.setdefault("kind", "modelled") != "modelled":
        fields["fitted"] = None
    return ResultRow(name, value, unit, **fields)


@lru_cache(6)  # shifted timers take memory, and chapters go from phone to phone
def timer_of(shape: str, soc: str, system: System) -> RunTimer:
    """Returns what `Phone.time` times runs with, in a typical session."""
    return Phone(load_profile(soc), system).run_timer(shape, CANVAS)


def band(value: float, *doubts: float) -> tuple[float, float]:
    """Returns the 95 % band of a value, from independent deviations of its logarithm."""
    factor = math.exp(TWO_SIDED * math.hypot(*doubts))
    return value / factor, value * factor
