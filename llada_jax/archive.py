"""A record of arrays with its settings: one .npz file, whole or not at all."""

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np

from llada_jax import atomic
from llada_jax.config import require

_DAMAGED = (
    *(EOFError, KeyError, IndexError, ValueError, BadZipFile, zlib.error),
    *(OSError, RuntimeError),  # a zip's directory that names a place or a method which is none
)


def save_archive(
    path: str | os.PathLike[str],
    arrays: Mapping[str, Any],
    settings: Mapping[str, Any],
    version: int,
) -> None:
    """Writes arrays by name, and settings (plain JSON) with the version of the record's format."""
    text = json.dumps({"format": version, **settings}, sort_keys=True)
    with atomic.new_file(path) as part, part.open("wb") as file:
        np.savez_compressed(file, settings=np.array(text), **arrays)


def load_archive(
    path: str | os.PathLike[str], names: Iterable[str], version: int, *, kind: str, short: str
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns the arrays of these names, and the settings, of a file of `save_archive`.

    Raises ValueError, which names the file and the `kind` of record (or, for another version, what
    it is called in `short`), for anything else.
    """
    with Path(path).open("rb") as file:
        require(is_zipfile(file), f"{path} is no {kind} of llada_jax; allowed: a whole .npz file")
        file.seek(0)
        try:
            archive = np.load(file, allow_pickle=False)
            settings = json.loads(str(archive["settings"]))
            found = settings.pop("format", None)
            arrays = {name: archive[name] for name in names} if found == version else {}
        except _DAMAGED as error:
            raise ValueError(f"{path} is no {kind} of llada_jax: {error}") from error
    require(found == version, f"{path} has {short} format {found!r}; allowed: {version}")
    return arrays, settings
