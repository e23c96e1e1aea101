"""What ends a run before its end, as one line, an exit code and the command that goes on.

    1    bad input or surroundings, as the line says, or a model that gives no numbers
    74   the disk or the folder takes no more: full, broken, read-only (EX_IOERR of sysexits.h)
    130  SIGINT, as Ctrl-C gives it
    141  whoever read the output has enough of it (`| head`), without a line
    143  SIGTERM, as a batch system sends it

With LLADA_JAX_FULL_ERROR=1 there is a traceback besides. What is none of these is a bug, whose
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

from experiments import end_while_importing
from llada_jax.model.mesh import require_device

BAD_INPUT = (ValueError, FloatingPointError, FileNotFoundError, FileExistsError, ImportError,
             NotADirectoryError, IsADirectoryError, HydraException, OmegaConfBaseException,
             YAMLError)  # fmt: skip
_DISK = (os.strerror(errno.ENOSPC), os.strerror(errno.EIO), os.strerror(errno.EROFS),
         os.strerror(errno.EDQUOT), os.strerror(errno.EFBIG))  # fmt: skip


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends what runs as Ctrl-C does: files are tidied up on the way out."""


@contextmanager
def told_in_a_line(resume: Callable[[], str]) -> Iterator[None]:
    """Ends the program with SystemExit where the body ends for one of these reasons; `resume` gives
    the command that goes on."""
    try:
        try:
            yield
        except (AssertionError, RuntimeError):
            require_device()  # whose absence JAX tells in these
            raise
        sys.stdout.flush()  # while somebody is here who can tell why it fails
    except (*BAD_INPUT, OSError, KeyboardInterrupt) as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
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
    """Raises Terminated in the body on SIGTERM, where the body runs in the main thread."""

    def terminate(number: int, frame: object) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGINT) is end_while_importing:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _nobody_reads() -> bool:
    """Tells whether the output is a closed pipe, and if so, drops what is still to come."""
    try:
        print(flush=True)
        return False
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True


def _code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
    of_the_disk = any(reason in str(error) for reason in _DISK)  # libraries wrap the system's error
    return 1 if isinstance(error, BAD_INPUT) and not of_the_disk else 74


def _line(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return f"stopped by {'SIGTERM' if isinstance(error, Terminated) else 'SIGINT'}"
    cause = error.__cause__ if isinstance(error, HydraException) else None
    return " ".join(f"{error} {cause or ''}".split())
