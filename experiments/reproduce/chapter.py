"""A chapter of the report: rows with references, errors and bands (95 % of a latency, or of the
ratio of two), reasons in words, and a picture's data."""

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
"""Of each chapter its title and words."""


@dataclass(frozen=True)
class Chapter:
    """One table or figure of the report."""

    title: str
    rows: list[ResultRow]
    words: list[str]
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Seconds by cause of some runs, for stacked bars."""


def chapter(
    name: str, rows: Sequence[ResultRow], words: Sequence[str] = (), **values: Any
) -> Chapter:
    """Returns a chapter: its own words, then those of `chapters.yaml`, with these values in."""
    told = [text.format(**values) for text in TEXTS[name]["words"]]
    return Chapter(TEXTS[name]["title"], list(rows), [*words, *told])


def is_close(row: ResultRow) -> bool:
    """Returns whether a row is within 15 % of its reference."""
    return abs(row.error or 0.0) <= 0.15


def modelled(name: str, value: float | Estimate, unit: str, **more: Any) -> ResultRow:
    """Returns a row; a mean has the interval and the number of its runs. Its kind is "informed" or
    "repeated" where the reference was not fitted and yet tests nothing."""
    if isinstance(value, Estimate):
        more |= {"n": value.n, "interval": value.interval}
        value = value.value
    if more.setdefault("kind", "modelled") != "modelled":
        more["fitted"] = None
    return ResultRow(name, value, unit, **more)


@lru_cache(6)
def _timers(shape: str, soc: str, system: System) -> list[tuple[ShiftedProfile, ForwardTimer]]:
    """Returns the profile with each number moved."""
    moved = shifted_profiles(load_profile(soc), system.uses)
    return [(each, _timer(shape, each.profile, system)) for each in moved]


@cache
def phone_of(shape: str, soc: str, system: System) -> ForwardTimer:
    """Returns what prices forwards of a shape on a phone that is cool, as its profile has it."""
    return _timer(shape, load_profile(soc), system)


def _timer(shape: str, profile: Profile, system: System) -> ForwardTimer:
    return ForwardTimer(graphs_of(shape), profile, system, CANVAS)


def changes_of(shape: str, soc: str, system: System, workload: Workload) -> dict[str, float]:
    """Returns by how much a latency's logarithm moves with each number's doubt."""
    alike = workload.with_mean_head_rows()
    base = phone_of(shape, soc, system).latency(alike)
    moved = _timers(shape, soc, system)
    return log_changes(base, ((each, timer.latency(alike)) for each, timer in moved))


def band(value: float, *doubts: float) -> tuple[float, float]:
    """Returns 95 % around a value, of independent standard deviations of its logarithm."""
    factor = math.exp(TWO_SIDED * math.hypot(*doubts))
    return value / factor, value * factor
