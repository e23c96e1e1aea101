"""Who is timed: contenders, children that time themselves whenever they are asked, in turns with
others; and programs that decode by themselves, which are timed from outside."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

from experiments.bench.peak import Numbers
from experiments.harness.run import REPOSITORY


class Timed(NamedTuple):
    """Seconds of a piece of work, and those of them that its layers took."""

    seconds: float
    layers: float

    def at_depth(self, times: float) -> float:
        """Returns the seconds of a model with so many times the layers."""
        return self.seconds + (times - 1) * self.layers

    @property
    def head(self) -> float:
        """Returns the seconds of the product with the vocabulary, and of what is made of it."""
        return self.seconds - self.layers


@dataclass(frozen=True)
class Contender:
    """Who is timed: a module of this folder, the interpreter that has its libraries, and what the
    module is told."""

    name: str
    module: str
    numbers: Numbers
    """What its products multiply, which says whose peak its share is of."""
    told: Mapping[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    decodes: bool = True
    """Whether it decodes; of others the forwards of a decoding are timed."""


class Missing(ValueError):
    """A contender that is not here, in one line."""


class ContenderProcess:
    """A contender's process, which is asked to time itself."""

    def __init__(self, contender: Contender, process: subprocess.Popen[str], errors: IO[str]):
        self.contender, self._process, self._errors = contender, process, errors
        self.about: str = self._answer("the start")

    def ask(self, work: str, number: int) -> Timed:
        """Has a piece of work timed. Raises Missing if the process ends before it answers."""
        assert self._process.stdin
        with suppress(BrokenPipeError):
            print(json.dumps([work, number]), file=self._process.stdin, flush=True)
        return Timed(*self._answer(f"{work} of {number}"))

    def _answer(self, work: str) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        raise Missing(f"{work}: {lines[-1] if lines else 'no message'} (status {status})")


@contextmanager
def started(contender: Contender, told: Mapping[str, Any]) -> Iterator[ContenderProcess]:
    """Runs a contender's process. Raises Missing if it does not get ready."""
    settings = json.dumps({**told, **contender.told})
    command = [contender.python, "-m", f"experiments.bench.rivals.{contender.module}", settings]
    with tempfile.TemporaryFile("w+") as errors, ExitStack() as stack:
        try:
            process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        except OSError as error:
            raise Missing(str(error)) from error
        stack.callback(process.communicate)
        yield ContenderProcess(contender, process, errors)


def seconds_a_step(command: str, values: Mapping[str, object], few: int, many: int) -> float:
    """Runs a command with `{steps}` and other `{values}` in few steps and in many; what the model's
    loading takes is in both. Raises Missing if it fails."""
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


def left_out(name: str, why: str) -> None:
    """Says in a line who is not timed."""
    print(f"left out: {name}: {why}", file=sys.stderr)
