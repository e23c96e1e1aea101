"""Files and folders that appear whole or not at all: the only writer of results in the project.

Content is written under a temporary name in the target's folder and renamed once the disk has it,
so that it also holds where the power fails: a reader finds the old content or the new one, of
writers at once the last one wins, and only a killed process leaves a temporary behind.
"""

import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_SUFFIX = ".partial"
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)


def write_text(path: str | os.PathLike[str], text: str, only_first: bool = False) -> None:
    """Writes a text as UTF-8, with its line ends as they are; with `only_first` unless there is a
    file: of several writers at once, the first does."""
    with new_file(path, only_first) as part:
        part.write_bytes(text.encode())


def write_bytes(path: str | os.PathLike[str], content: bytes | bytearray | memoryview) -> None:
    """Writes bytes."""
    with new_file(path) as part:
        part.write_bytes(content)


def append_text(path: str | os.PathLike[str], text: str) -> None:
    """Adds a text to a file in one piece; a failure leaves the file as it was."""
    content = text.encode()
    with open(path, "ab", buffering=0) as file:
        before = file.tell()
        try:
            if file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            with suppress(OSError):
                file.truncate(before)
            raise


@contextmanager
def new_file(path: str | os.PathLike[str], only_first: bool = False) -> Iterator[Path]:
    """Gives the path of a file to write, which replaces `path` where the body succeeds."""
    target = Path(path)
    part = _temporary(target)
    try:
        yield part
        sync(part)
        if only_first:
            with suppress(FileExistsError):
                target.hardlink_to(part)
        else:
            part.replace(target)
        _sync(target.parent)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives an empty folder to fill, which becomes `path` where the body succeeds; in a folder that
    is there already, its files replace those of the same names one by one. Parents are made.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = _temporary(target)
    part.mkdir()
    try:
        yield part
        sync(part)
        try:
            part.rename(target)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            for file in part.iterdir():
                file.replace(target / file.name)
            _sync(target)
        _sync(target.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def rename(part: Path, target: Path) -> None:
    """Gives a complete folder its name."""
    sync(part)
    part.rename(target)
    _sync(target.parent)


def sync(path: Path) -> None:
    """Waits until the disk has a file, or a folder with all that is in it."""
    for inner in path.rglob("*") if path.is_dir() else ():
        _sync(inner)
    _sync(path)


def remove_temporaries(folder: Path) -> None:
    """Removes what killed writers left anywhere in a folder that nobody else writes to now."""
    for path in list(folder.rglob(f".*.{'[0-9a-f]' * 32}{_SUFFIX}")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}{_SUFFIX}")
