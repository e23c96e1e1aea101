"""The protocol of a contender's process, for interpreters with the standard library alone.

The process prints one line that describes it. Each line on standard input is then a JSON list of a
task's name and a number; the answer is a JSON list of its seconds and the seconds in the layers.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any


class LayerClock:
    """Sums the seconds spent in the layers."""

    def __init__(self) -> None:
        self.seconds = self._began = 0.0

    def start(self, *_: object) -> None:
        self._began = time.perf_counter()

    def stop(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began


def answer_lines(about: str, clock: LayerClock, works: Mapping[str, Callable[[int], Any]]) -> None:
    """Answers until standard input ends. Output of libraries is redirected to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(about), file=answers, flush=True)
    for line in sys.stdin:
        work, number = json.loads(line)
        clock.seconds, began = 0.0, time.perf_counter()
        works[work](number)
        seconds = time.perf_counter() - began
        print(json.dumps([seconds, clock.seconds]), file=answers, flush=True)
