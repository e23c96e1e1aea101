"""Contenders: processes that time a task on request, and complete programs timed from outside.

A contender stays loaded between requests, so that it can be timed in alternation with another one.
"""

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
    """Seconds of a task, and the part of them in the layers."""

    seconds: float
    layers: float

    def at_depth(self, times: float) -> float:
        """Returns the seconds of a model with `times` as many layers."""
        return self.seconds + (times - 1) * self.layers

    @property
    def head(self) -> float:
        """Returns the seconds outside the layers: the product with the vocabulary and its use."""
        return self.seconds - self.layers


@dataclass(frozen=True)
class Contender:
    """A program to time: a module of this folder, an interpreter with its libraries, and
    options."""

    name: str
    module: str
    numbers: Numbers
    """The format of its products, whose peak its speed is compared with."""
    options: Mapping[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    decodes: bool = True
    """Whether it decodes by itself; otherwise the forwards of a decoding run are timed."""


class Missing(ValueError):
    """A contender cannot run here; the message is one line."""


class ContenderProcess:
    def __init__(self, contender: Contender, process: subprocess.Popen[str], errors: IO[str]):
        self.contender, self._process, self._errors = contender, process, errors
        self.about: str = self._answer("the start")

    def ask(self, work: str, number: int) -> Timed:
        """Times a task. Raises Missing if the process ends before it answers."""
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
def running(contender: Contender, options: Mapping[str, Any]) -> Iterator[ContenderProcess]:
    """Runs a contender's process. Raises Missing if it does not become ready."""
    settings = json.dumps({**options, **contender.options})
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


@contextmanager
def running_if_ready(
    contender: Contender | None, options: Mapping[str, Any]
) -> Iterator[ContenderProcess | None]:
    """Runs a contender's process, or yields None: without a contender, or if it does not become
    ready, which is printed."""
    with ExitStack() as stack:
        process = None
        if contender is not None:
            try:
                process = stack.enter_context(running(contender, options))
            except Missing as error:
                left_out(contender.name, str(error))
        yield process


def seconds_a_step(command: str, values: Mapping[str, object], few: int, many: int) -> float:
    """Returns the seconds of a step of a command with `{steps}` and other `{values}`: the
    difference of many and few steps, since both include loading. Raises Missing if it fails."""
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
    """Prints a contender that is not timed, and the reason."""
    print(f"left out: {name}: {why}", file=sys.stderr)
