"""Writes files and folders atomically. All results in the project are written with this module.

Content is written under a temporary name in the target's folder, flushed to disk and renamed. So
even after a power failure a reader sees the old content or the new one. If several writers compete,
the last one wins. Only a killed process leaves a temporary file behind.
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
    """Writes a text as UTF-8 with unchanged line ends. With `only_first`, an existing file is not
    replaced: if several writers compete, the first one wins."""
    with new_file(path, only_first) as part:
        part.write_bytes(text.encode())


def write_bytes(path: str | os.PathLike[str], content: bytes | bytearray | memoryview) -> None:
    with new_file(path) as part:
        part.write_bytes(content)


def append_text(path: str | os.PathLike[str], text: str) -> None:
    """Appends a text to a file in one write; a failure leaves the file unchanged."""
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
    """Yields the path of a file to write; it replaces `path` if the body succeeds."""
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
    """Yields an empty folder to fill; it becomes `path` if the body succeeds. If `path` is an
    existing folder, files with the same names are replaced one by one. Parents are created.
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
    """Gives a complete folder its final name."""
    sync(part)
    part.rename(target)
    _sync(target.parent)


def sync(path: Path) -> None:
    """Waits until a file, or a folder with all its content, is on disk."""
    for inner in path.rglob("*") if path.is_dir() else ():
        _sync(inner)
    _sync(path)


def remove_temporaries(folder: Path) -> None:
    """Deletes temporaries of killed writers in a folder that has no other writers."""
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
