"""Turns the expected failures of a run into one line, an exit code and the command that resumes it.

    1    bad input or surroundings, or a model with scores that are not finite
    74   the disk is full, broken or read-only (EX_IOERR of sysexits.h)
    130  SIGINT, from Ctrl-C
    141  the reader of the output closed it (`| head`); no line is printed
    143  SIGTERM, as a batch system sends it

With LLADA_JAX_FULL_ERROR=1 the traceback is printed as well. Any other exception is a bug, and its
traceback is always shown.
"""

import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from experiments import exit_on_interrupt
from llada_jax.model.mesh import require_device

BAD_INPUT = (ValueError, FloatingPointError, FileNotFoundError, FileExistsError, ImportError,
             NotADirectoryError, IsADirectoryError, HydraException, OmegaConfBaseException,
             YAMLError)  # fmt: skip
_DISK = (os.strerror(errno.ENOSPC), os.strerror(errno.EIO), os.strerror(errno.EROFS),
         os.strerror(errno.EDQUOT), os.strerror(errno.EFBIG))  # fmt: skip


class Terminated(KeyboardInterrupt):
    """SIGTERM as an exception, so that cleanup runs as it does for Ctrl-C."""


@contextmanager
def one_line_errors(resume: Callable[[], str]) -> Iterator[None]:
    """Raises SystemExit if the body fails for one of these reasons; `resume` returns the command to
    print."""
    try:
        try:
            yield
        except (AssertionError, RuntimeError):
            require_device()  # JAX reports a missing device by these exceptions
            raise
        sys.stdout.flush()  # a failure here can still be reported; at exit it could not
    except (*BAD_INPUT, OSError, KeyboardInterrupt) as error:
        if isinstance(error, BrokenPipeError) and _is_output_closed():
            raise SystemExit(128 + signal.SIGPIPE) from error
        code, shows_all = _code(error), os.environ.get("LLADA_JAX_FULL_ERROR") == "1"
        if code == 1:
            if shows_all:
                raise
            raise SystemExit(f"error: {_line(error)}") from error
        if shows_all:
            traceback.print_exception(error)
        print(f"error: {_line(error)}\nresume with: {resume()}", file=sys.stderr, flush=True)
        raise SystemExit(code) from error


@contextmanager
def terminable() -> Iterator[None]:
    """Raises Terminated in the body on SIGTERM, if the body runs in the main thread."""

    def terminate(number: int, frame: object) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGINT) is exit_on_interrupt:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_output_closed() -> bool:
    """Returns whether the output is a closed pipe; if so, later output is discarded."""
    try:
        print(flush=True)
        return False
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True


def _code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
    # Libraries wrap the system's error.
    is_disk_error = any(reason in str(error) for reason in _DISK)
    return 1 if isinstance(error, BAD_INPUT) and not is_disk_error else 74


def _line(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return f"stopped by {'SIGTERM' if isinstance(error, Terminated) else 'SIGINT'}"
    cause = error.__cause__ if isinstance(error, HydraException) else None
    return " ".join(f"{error} {cause or ''}".split())
