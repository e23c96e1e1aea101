"""A chapter of the report: result rows with references, errors and 95 % bands, and explanations.

The band of a latency comes from the uncertainty of each of the profile's numbers; in the ratio of
two latencies, uncertainties that both share cancel.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from experiments.harness.estimates import Estimate
from experiments.harness.results import ResultRow
from llada_jax.config_files import read_yaml
from llada_jax.phones.graphs import graphs_of
from llada_jax.phones.profile import Profile, load_profile
from llada_jax.phones.published_tasks import CANVAS
from llada_jax.phones.simulate import ForwardTimer
from llada_jax.phones.system import System
from llada_jax.phones.uncertainty import TWO_SIDED, ShiftedProfile, log_changes, shifted_profiles
from llada_jax.phones.workload import Workload

PAPER = "arXiv 2606.13740"
TASKS = ("GSM8K", "BoolQ", "ARC-C", "HellaSwag")
LENGTHS = (32, 64, 128)
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


@lru_cache(6)
def _timers(shape: str, soc: str, system: System) -> list[tuple[ShiftedProfile, ForwardTimer]]:
    """Returns a timer for each uncertain number of the profile, with that number changed."""
    moved = shifted_profiles(load_profile(soc), system.uses)
    return [(change, _timer(shape, change.profile, system)) for change in moved]


@cache
def phone_of(shape: str, soc: str, system: System) -> ForwardTimer:
    """Returns the timer of a shape's forwards on a cool phone."""
    return _timer(shape, load_profile(soc), system)


def _timer(shape: str, profile: Profile, system: System) -> ForwardTimer:
    return ForwardTimer(graphs_of(shape), profile, system, CANVAS)


def changes_of(shape: str, soc: str, system: System, workload: Workload) -> dict[str, float]:
    """Returns the change of a latency's logarithm by the uncertainty of each number."""
    alike = workload.with_mean_head_rows()
    base = phone_of(shape, soc, system).latency(alike)
    moved = _timers(shape, soc, system)
    return log_changes(base, ((change, timer.latency(alike)) for change, timer in moved))


def band(value: float, *doubts: float) -> tuple[float, float]:
    """Returns the 95 % band of a value, from independent deviations of its logarithm."""
    factor = math.exp(TWO_SIDED * math.hypot(*doubts))
    return value / factor, value * factor
