"""Times of things that take turns on a machine."""

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax

from llada_jax.model.finite import require_finite_results

Result = TypeVar("Result")


def best_of(work: Callable[[], Result], repeats: int = 1) -> tuple[Result, float]:
    """Returns what work on the host returns, and its best time in seconds."""
    timed = [_timed(work) for _ in range(repeats)]
    return timed[-1][0], min(seconds for _, seconds in timed)


def best_times(
    candidates: Mapping[str, Callable[[], Any]], repeats: int, calls: int = 1
) -> dict[str, float]:
    """Returns the seconds of each candidate: best of `repeats` rounds. Arguments and errors as
    `times_in_turns`."""
    return {name: min(each) for name, each in times_in_turns(candidates, repeats, calls).items()}


def times_in_turns(
    candidates: Mapping[str, Callable[[], Any]], repeats: int, calls: int = 1
) -> dict[str, list[float]]:
    """Returns the seconds of each candidate in each of `repeats` rounds, in which all take turns,
    after a first call that compiles.

    Args:
      calls: in each turn, of which the best counts. The first one pays for what the candidate
        before left behind: in caches, and memory that the system is still taking back.

    Raises FloatingPointError where a candidate gives NaN or infinity.
    """
    for name, call in candidates.items():
        require_finite_results(name, jax.block_until_ready(call()))
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, call in candidates.items():
            times[name].append(min(_timed(call)[1] for _ in range(calls)))
    return times


def _timed(call: Callable[[], Result]) -> tuple[Result, float]:
    began = time.perf_counter()
    return jax.block_until_ready(call()), time.perf_counter() - began
