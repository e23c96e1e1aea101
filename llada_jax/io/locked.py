"""Locks a folder for one process, or for several that share it; the lock file names the process.

The system releases the lock when its process ends in any way, so a leftover file does not matter.
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
      path: The file to lock; its folder is created if necessary. Default: a file in `folder`.
      shared: Whether several processes may hold the lock; the file is then not deleted.

    Raises ValueError that names the process with the lock. Warns if the file system has no locks.
    """
    path = path or folder / LOCK_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    with _open_locked(path, folder, fcntl.LOCK_SH if shared else fcntl.LOCK_EX) as file:
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


def _open_locked(path: Path, folder: Path, kind: int) -> IO[str]:
    """Opens and locks the file; retries if its previous owner deleted it in between."""
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
