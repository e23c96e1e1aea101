"""A process that decodes when it is told to."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from llada_jax.config import require

HERE = Path(__file__).parents[2]
_CHILD = Path(__file__).with_name("told_to_decode.py")


class DecodingProcess:
    """Holds a model, loaded by the `llada_jax` of a checkout, until the context ends."""

    def __init__(self, model: str, checkout: Path = HERE) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_CHILD), model],
            env={**os.environ, "PYTHONPATH": str(checkout)},
            cwd=checkout,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "DecodingProcess":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.__exit__(None, None, None)

    def begin(self, told: dict[str, Any]) -> None:
        """Starts a decoding with these settings of the sampler, and a `loop`."""
        print(json.dumps(told), file=self._process.stdin, flush=True)

    def wait(self) -> float:
        """Returns the milliseconds a forward of what was begun. Raises ValueError where
        the process ended."""
        assert self._process.stdout
        answer = self._process.stdout.readline()
        require(bool(answer), "a process could not decode; what it printed is above")
        return float(answer)

    def decode(self, told: dict[str, Any]) -> float:
        """Begins, and waits."""
        self.begin(told)
        return self.wait()
