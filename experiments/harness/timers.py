"""Times of work: in turns on a machine, in a process of its own, and the quartiles of several."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple, TypeVar

import jax

from experiments.harness.results import ResultRow
from llada_jax.model.finite import require_finite_results

T = TypeVar("T")


class Took(NamedTuple):
    """Seconds by the clock, and those of the processor, which other processes disturb less."""

    seconds: float
    processor: float


def best_of(work: Callable[[], T], repeats: int = 1) -> tuple[T, float]:
    """Returns what work on the host returns, and its best time in seconds."""
    timed = [_timed(work) for _ in range(repeats)]
    return timed[-1][0], min(took.seconds for _, took in timed)


def in_turns(
    candidates: Mapping[str, Callable[[], Any]], repeats: int
) -> tuple[dict[str, Any], dict[str, list[Took]]]:
    """Returns what each candidate gives in a first call, which compiles, and how long it takes in
    each of `repeats` rounds, in which all take turns, every second time from the last one on.
    Raises FloatingPointError where a candidate gives NaN or infinity."""
    first = {name: jax.block_until_ready(call()) for name, call in candidates.items()}
    for name, result in first.items():
        require_finite_results(name, result)
    times: dict[str, list[Took]] = {name: [] for name in candidates}
    for turn in range(repeats):
        for name in reversed(times) if turn % 2 else times:
            times[name].append(_timed(candidates[name])[1])
    return first, times


def times_in_turns(
    candidates: Mapping[str, Callable[[], Any]], repeats: int
) -> dict[str, list[float]]:
    """Returns the seconds of each candidate, as `in_turns` takes them."""
    _, times = in_turns(candidates, repeats)
    return {name: [took.seconds for took in each] for name, each in times.items()}


def in_own_process(
    function: Callable[..., T], *arguments: object, environment: Mapping[str, str] | None = None
) -> T:
    """Returns what a function of some module gives in a new process, so that what one piece of work
    leaves behind is not in the next; raises what it raises."""
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
    """Yields the median and the quartiles of two values or more."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    yield ResultRow(name, median, unit, n=len(values), source=source)
    yield ResultRow(f"{name}/lower_quartile", low, unit)
    yield ResultRow(f"{name}/upper_quartile", high, unit)


def _timed(work: Callable[[], T]) -> tuple[T, Took]:
    began, processor = time.perf_counter(), time.process_time()
    result = jax.block_until_ready(work())
    return result, Took(time.perf_counter() - began, time.process_time() - processor)
