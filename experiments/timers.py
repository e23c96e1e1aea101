"""Times of things that take turns on a machine."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


def best_times(candidates: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Seconds of each candidate: best of `repeats` rounds in which all take turns, after a first
    call that compiles."""
    for call in candidates.values():
        jax.block_until_ready(call())
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(repeats):
        for name, call in candidates.items():
            began = time.perf_counter()
            jax.block_until_ready(call())
            best[name] = min(best[name], time.perf_counter() - began)
    return best
