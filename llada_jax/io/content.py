"""A file's content as one SHA-256. A large file is read once: then its size and times answer.

What is remembered lies in `hashes.json` of `cache_folder()`, or else in the process. A file that
was written, replaced or touched has another time of change, which no program can set.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tqdm import tqdm

from llada_jax.io import atomic
from llada_jax.io.cache_folder import cache_folder

REMEMBERED_BYTES = 1 << 26
"""Smaller files are read each time, which takes less than 0.05 s."""
_PIECE_BYTES, _SILENT_SECONDS, _FILE = 1 << 20, 2, "hashes.json"
_read_here: dict[str, list[Any]] = {}


def content_hash(folder: Path, files: Iterable[Path]) -> str:
    """Returns one name, 32 hexadecimal digits, of what files hold and are called in a folder."""
    whole = hashlib.sha256()
    for name, file in sorted((os.path.relpath(file, folder), file) for file in files):
        whole.update(f"{file_hash(file)} {name}\n".encode())
    return whole.hexdigest()[:32]


def file_hash(path: str | os.PathLike[str]) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    path = Path(path).resolve()
    state, key = file_state(path), str(path)
    if state[0] < REMEMBERED_BYTES:
        return _sha256(path)
    known = _remembered()
    *seen, found = known.get(key, [None])
    if seen == state:
        return found
    found = _sha256(path)
    if state == file_state(path):
        _remember({**known, key: [*state, found]})
    return found


def file_state(path: Path) -> list[int]:
    """Returns size and times of a file; once it is written or replaced they are others."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _sha256(path: Path) -> str:
    digest, size = hashlib.sha256(), path.stat().st_size
    about = {"unit": "B", "unit_scale": True, "delay": _SILENT_SECONDS, "mininterval": 1}
    about |= {"desc": f"reading {path.name}", "disable": size < REMEMBERED_BYTES}
    with path.open("rb") as stream, tqdm(total=size, **about) as bar:
        while piece := stream.read(_PIECE_BYTES):
            digest.update(piece)
            bar.update(len(piece))
    return digest.hexdigest()


def _remembered() -> dict[str, list[Any]]:
    try:
        stored = json.loads((cache_folder() / _FILE).read_bytes())
        well_formed = {key: list(entry) for key, entry in stored.items() if len(entry) == 4}
    except (OSError, ValueError, AttributeError, TypeError):
        well_formed = {}
    return well_formed | _read_here


def _remember(known: dict[str, list[Any]]) -> None:
    _read_here.update(known)
    with suppress(OSError):
        file = cache_folder() / _FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        there = {key: entry for key, entry in known.items() if os.path.exists(key)}
        atomic.write_text(file, json.dumps(there, indent=2) + "\n")
