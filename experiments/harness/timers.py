"""Timing of candidates that are to be compared.

Candidates run in alternation, so that a machine that slows down meanwhile slows all of them alike.
`in_new_process` isolates work that leaves threads or caches behind; `spread` makes result rows.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple, TypeVar

import jax
from tqdm import tqdm

from experiments.harness.results import ResultRow
from llada_jax.model.finite import require_finite_results

T = TypeVar("T")


class Timing(NamedTuple):
    """Wall time and processor time in seconds; other processes disturb the latter less."""

    seconds: float
    processor: float


def best_of(work: Callable[[], T], repeats: int = 1) -> tuple[T, float]:
    """Returns the result of `work` and its shortest time in seconds."""
    timed = [_timed(work) for _ in range(repeats)]
    return timed[-1][0], min(took.seconds for _, took in timed)


def in_turns(
    candidates: Mapping[str, Callable[[], Any]], repeats: int
) -> tuple[dict[str, Any], dict[str, list[Timing]]]:
    """Returns the result of each candidate's first call, which compiles, and its times in `repeats`
    rounds. Every second round runs the candidates in reverse order. Raises FloatingPointError if a
    candidate returns NaN or infinity."""
    show = partial(tqdm, total=len(candidates), leave=False)
    calls = show(candidates.items(), "first calls")
    first = {name: jax.block_until_ready(call()) for name, call in calls}
    for name, result in first.items():
        require_finite_results(name, result)
    times: dict[str, list[Timing]] = {name: [] for name in candidates}
    for turn in range(repeats):
        order = reversed(times) if turn % 2 else times
        for name in show(order, f"turn {turn + 1} of {repeats}"):
            times[name].append(_timed(candidates[name])[1])
    return first, times


def times_in_turns(
    candidates: Mapping[str, Callable[[], Any]], repeats: int
) -> dict[str, list[float]]:
    """Returns the wall times of each candidate in seconds, measured by `in_turns`."""
    return wall_times(in_turns(candidates, repeats)[1])


def wall_times(times: Mapping[str, Sequence[Timing]]) -> dict[str, list[float]]:
    """Returns the wall times in seconds of what `in_turns` measured."""
    return {name: [took.seconds for took in rounds] for name, rounds in times.items()}


def in_new_process(
    function: Callable[..., T], *arguments: object, environment: Mapping[str, str] | None = None
) -> T:
    """Calls a module's function in a new process, which inherits no threads, caches or compiled
    programs. Returns its result, or raises its exception."""
    before = dict(os.environ)
    os.environ |= environment or {}
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            return process.submit(function, *arguments).result()
    finally:
        os.environ.clear()
        os.environ |= before


def spread(
    name: str, values: Sequence[float], unit: str, source: str | None = None
) -> Iterator[ResultRow]:
    """Yields rows of the median and the quartiles of two or more values."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    yield ResultRow(name, median, unit, n=len(values), source=source)
    yield ResultRow(f"{name}/lower_quartile", low, unit)
    yield ResultRow(f"{name}/upper_quartile", high, unit)


def _timed(work: Callable[[], T]) -> tuple[T, Timing]:
    began, processor = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(work())
    return result, Timing(time.perf_counter() - began, time.process_time() - processor)
