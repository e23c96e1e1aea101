"""The suite `beside`: a run next to another one, and next to processes that never rest.

Two processes with the same model take turns, then decode at once; then one decodes while every core
also runs an empty loop. Fair shares are 2 times the time alone in both cases.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from experiments.bench.decoding_process import DecodingProcess
from experiments.harness.results import ResultRow
from llada_jax.config import require_counts

_TOLD = {"gen_length": 64, "block_length": 32, "steps": 64, "cache": "blockwise"}


@dataclass(frozen=True, kw_only=True)
class BesideBenchConfig:
    """What the suite times. The comments are in conf/bench.yaml."""

    turns: int = 15

    def __post_init__(self) -> None:
        require_counts(self, "turns", least=2)


def time_beside(model: str, config: BesideBenchConfig) -> Iterator[ResultRow]:
    """Yields, for each loop, the time alone and how many times longer it takes beside others."""
    with ExitStack() as stack:
        both = [stack.enter_context(DecodingProcess(model)) for _ in range(2)]
        for loop in ("compiled", "host"):
            told = {**_TOLD, "loop": loop}
            for process in both:
                process.decode(told)  # compiles
            alone, together, crowded = [], [], []
            for _ in range(config.turns):
                alone += [process.decode(told) for process in both]
                together += _at_once(both, told)
                crowded.append(_beside_empty_loops(both[0], told))
            usual = statistics.median(alone)
            yield ResultRow(f"beside/{loop}/alone", usual, "ms/forward", n=len(alone))
            for name, times in (("another_run", together), ("busy_cores", crowded)):
                ratios = statistics.quantiles([time / usual for time in times], n=4)
                for quartile, ratio in zip(("lower", "median", "upper"), ratios, strict=True):
                    yield ResultRow(f"beside/{loop}/{name}/{quartile}", ratio, "x the time alone")


def _at_once(both: Sequence[DecodingProcess], told: dict[str, Any]) -> list[float]:
    for process in both:
        process.begin(told)
    return [process.wait() for process in both]


def _beside_empty_loops(process: DecodingProcess, told: dict[str, Any]) -> float:
    with ExitStack() as busy:
        for _ in range(os.cpu_count() or 1):
            spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            busy.enter_context(spinning)
            busy.callback(spinning.kill)
        return process.decode(told)
