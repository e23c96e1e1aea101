"""SHA-256 of files, cached for large files by their size and times.

The cache is `hashes.json` in `cache_folder()`, or in memory if it cannot be written. A file that
was written, replaced or touched has a new time of change (ctime), which programs cannot set.
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
"""Smaller files are always read, which takes less than 0.05 s."""
_PIECE_BYTES, _SILENT_SECONDS, _FILE = 1 << 20, 2, "hashes.json"
_read_here: dict[str, list[Any]] = {}


def content_hash(folder: Path, files: Iterable[Path]) -> str:
    """Returns a hash (32 hexadecimal digits) of the content and relative names of files."""
    digest = hashlib.sha256()
    for name, file in sorted((os.path.relpath(file, folder), file) for file in files):
        digest.update(f"{file_hash(file)} {name}\n".encode())
    return digest.hexdigest()[:32]


def file_hash(path: str | os.PathLike[str]) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    path = Path(path).resolve()
    state, key = file_state(path), str(path)
    if state[0] < REMEMBERED_BYTES:
        return _sha256(path)
    known = _remembered()
    *known_state, digest = known.get(key, [None])
    if known_state == state:
        return digest
    digest = _sha256(path)
    if state == file_state(path):  # not changed while it was read
        _remember({**known, key: [*state, digest]})
    return digest


def file_state(path: Path) -> list[int]:
    """Returns size and times of a file, which differ after it was written or replaced."""
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
        existing = {key: entry for key, entry in known.items() if os.path.exists(key)}
        atomic.write_text(file, json.dumps(existing, indent=2) + "\n")
