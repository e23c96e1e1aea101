"""A program that decodes by itself: a command line, timed from outside."""

import shlex
import subprocess
import time
from collections.abc import Mapping

from experiments.bench.rivals.contender import Missing


def seconds_a_step(command: str, values: Mapping[str, object], few: int, many: int) -> float:
    """Runs a command with `{steps}` and other `{values}` in few steps and in many; what the model's
    loading takes is in both. Raises Missing where it fails."""
    few_seconds, many_seconds = (_seconds(command.format(steps=n, **values)) for n in (few, many))
    return (many_seconds - few_seconds) / (many - few)


def _seconds(command: str) -> float:
    began = time.perf_counter()
    try:
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    except OSError as error:
        raise Missing(str(error)) from error
    if done.returncode:
        end = (done.stderr or done.stdout).strip().splitlines()
        raise Missing(f"{end[-1] if end else 'no message'} (status {done.returncode})")
    return time.perf_counter() - began
