"""Libraries that print: kept quiet, unless they fail."""

import ctypes
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from threading import RLock

_turn = RLock()


@contextmanager
def silenced(what: str) -> Iterator[None]:
    """Keeps what a library prints and warns to itself; where it fails, the error says the end.

    Threads take turns, since standard output belongs to the process: of two at once, each would
    restore what it found, and the last one the other's log.

    A RuntimeError or ValueError of the body becomes a RuntimeError that names `what`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    printed = StringIO()
    with _turn, tempfile.TemporaryFile() as log, warnings.catch_warnings(action="ignore"):
        kept = {number: os.dup(number) for number in (1, 2)}
        try:
            for number in kept:
                os.dup2(log.fileno(), number)
            with redirect_stdout(printed), redirect_stderr(printed):
                yield
        except (RuntimeError, ValueError) as error:
            _flush_c()
            log.seek(0)
            words = printed.getvalue() + log.read().decode(errors="replace")
            lines = words.strip().splitlines()[-8:]
            raise RuntimeError("\n".join([f"{what} failed: {error}", *lines])) from error
        finally:
            _flush_c()
            for number, original in kept.items():
                os.dup2(original, number)
                os.close(original)


def _flush_c() -> None:
    """Writes out what C code has printed so far."""
    ctypes.CDLL(None).fflush(None)
