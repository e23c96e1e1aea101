"""A folder that one process writes to at a time, or some that share it; a file in it names the one.

The system frees the lock when its process ends, however it ends: a file that was left locks nobody.
"""

import errno
import fcntl
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from llada_jax.config import require

LOCK_FILE = ".lock"
_UNKNOWN = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


@contextmanager
def locked(folder: Path, path: Path | None = None, *, shared: bool = False) -> Iterator[None]:
    """Holds the lock of a folder.

    Args:
      path: the file that is locked, whose folder is made where it lacks; default: one in `folder`.
      shared: others that share it may hold it as well; the file then stays.

    Raises ValueError that names who holds it. Warns where the file's system has no locks.
    """
    path = path or folder / LOCK_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with _taken(path, folder, fcntl.LOCK_SH if shared else fcntl.LOCK_EX) as file:
        if shared:
            yield
            return
        file.truncate(0)
        now = datetime.now().astimezone().isoformat(" ", "seconds")
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {now}")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _taken(path: Path, folder: Path, kind: int) -> IO[str]:
    """Opens the file and locks it, unless its last owner has removed it in between."""
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            _lock(file, folder, kind)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    return file
        except BaseException:
            file.close()
            raise
        file.close()


def _lock(file: IO[str], folder: Path, kind: int) -> None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read() or "another process"
        require(False, f"{folder} is in use by {holder}; allowed: another folder, or later")
    except OSError as error:
        if error.errno not in _UNKNOWN:
            raise
        warnings.warn(f"{folder} has no locks ({error.strerror})", stacklevel=2)
