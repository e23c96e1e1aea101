"""The child's side of a rival: it answers each line with seconds. Standard library only.

A child prints one line that says what it is. Then each line on standard input is a JSON list of a
piece of work and a number, and each answer a JSON object: `seconds`, and how many of them passed in
the `layers`.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Work = Callable[[int], Any]


@dataclass
class LayerClock:
    """Adds up the seconds that pass in the layers."""

    seconds: float = 0.0
    _began: float = 0.0

    def start(self, *_: object) -> None:
        self._began = time.perf_counter()

    def stop(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began


def answer_lines(about: str, clock: LayerClock, works: Mapping[str, Work]) -> None:
    """Answers until standard input ends. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(about), file=answers, flush=True)
    for line in sys.stdin:
        work, number = json.loads(line)
        clock.seconds, began = 0.0, time.perf_counter()
        works[work](number)
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "layers": clock.seconds}), file=answers, flush=True)
