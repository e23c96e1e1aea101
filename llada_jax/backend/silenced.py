"""Silences libraries that print, but shows the end of their output if they fail."""

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
    """Captures all that a library prints or warns, C code included.

    Only one thread at a time, because standard output belongs to the process: with two, each would
    restore the descriptors that it has seen, which may be the log file of the other.

    A RuntimeError or ValueError of the body becomes a RuntimeError that names `what`, with the last
    lines of the output.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    printed = StringIO()
    with _turn, tempfile.TemporaryFile() as log, warnings.catch_warnings(action="ignore"):
        originals = {number: os.dup(number) for number in (1, 2)}
        try:
            for number in originals:
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
            for number, original in originals.items():
                os.dup2(original, number)
                os.close(original)


def _flush_c() -> None:
    """Writes out what C code has printed so far."""
    ctypes.CDLL(None).fflush(None)
