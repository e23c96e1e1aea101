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


def times_in_turns(
    candidates: Mapping[str, Callable[[], Any]], repeats: int
) -> dict[str, list[float]]:
    """Returns the seconds of each candidate in each of `repeats` rounds, in which all take turns,
    after a first call that compiles.

    Raises FloatingPointError where a candidate gives NaN or infinity.
    """
    for name, call in candidates.items():
        require_finite_results(name, jax.block_until_ready(call()))
    rounds = [{name: _timed(call)[1] for name, call in candidates.items()} for _ in range(repeats)]
    return {name: [times[name] for times in rounds] for name in candidates}


def _timed(call: Callable[[], Result]) -> tuple[Result, float]:
    began = time.perf_counter()
    return jax.block_until_ready(call()), time.perf_counter() - began
