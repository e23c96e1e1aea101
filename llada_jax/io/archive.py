"""Stores arrays with settings as one .npz file with a checksum, written atomically.

Files are untrusted: the decompressed size is checked before decompressing, and an array must have
exactly the bytes that its header states.
"""

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, is_zipfile

import numpy as np

from llada_jax.config import require
from llada_jax.io import atomic

_LARGEST = 1 << 29
"""Maximum size of a record when decompressed: 512 MiB."""
_DAMAGED = (
    *(EOFError, KeyError, IndexError, ValueError, BadZipFile, zlib.error),
    *(OSError, RuntimeError),  # a zip directory with an invalid offset or compression method
    *(OverflowError, struct.error),
    TokenError,  # a null byte in the header of an array
    MemoryError,  # an array with a header that states a huge size
)
_KINDS = {"i": "whole numbers", "f": "floats", "b": "truth values"}
MOST_COUNT = 1 << 24
"""Upper bound of all counts in records, such as rows and positions."""


class ArrayField(NamedTuple):
    """Requirements for an array of a record."""

    axes: str
    """A letter for each axis. Axes with the same letter have the same size in all arrays."""
    kind: str = "i"
    """Kind of NumPy's dtype: "i" whole numbers, "f" floats, "b" truth values."""
    least: float = 0
    most: float | str = MOST_COUNT
    """Maximum value; a letter if the values are indices of this axis."""


def require_arrays(arrays: Mapping[str, Any], table: Mapping[str, ArrayField]) -> dict[str, int]:
    """Returns the size of each axis. Raises ValueError that names the first array that violates its
    `ArrayField`, or does not match earlier ones. NaN is within any bounds."""
    sizes: dict[str, int] = {}
    for name, (axes, kind, *_) in table.items():
        array = arrays[name]
        require(
            isinstance(array, np.ndarray) and array.dtype.kind == kind,
            f"{name} is {type(array).__name__} {getattr(array, 'dtype', '')}; allowed: a NumPy "
            f"array of {_KINDS[kind]}",
        )
        shape = f"{len(axes)} [{', '.join(axes)}]"
        require(array.ndim == len(axes), f"{name} has {array.ndim} axes; allowed: {shape}")
        sizes = dict(zip(axes, array.shape, strict=True)) | sizes
        known = tuple(sizes[axis] for axis in axes)
        require(array.shape == known, f"{name} has shape {array.shape}; allowed here: {known}")
    for name, field in table.items():
        array, most = arrays[name], field.most
        most = sizes[most] - 1 if isinstance(most, str) else most
        outside = array[(array < field.least) | (array > most)]
        allowed = f"{field.least} to {most}" if field.least <= most else "none"
        require(not outside.size, f"{name} has {outside[:1]}; allowed: {allowed}")
    return sizes


def save_archive(
    path: str | os.PathLike[str],
    arrays: Mapping[str, Any],
    settings: Mapping[str, Any],
    version: int,
) -> None:
    """Writes arrays by name, and settings (plain JSON) with the format's version.

    Raises ValueError for more than 512 MiB.
    """
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    size = sum(array.nbytes for array in arrays.values())
    require(size <= _LARGEST, f"{path} would hold {size} bytes; allowed: up to {_LARGEST}")
    text = json.dumps({"format": version, **settings}, sort_keys=True)
    about = {"settings": np.array(text), "sha256": np.array(_sha256(text, arrays))}
    with atomic.new_file(path) as part, part.open("wb") as file:
        np.savez_compressed(file, **about, **arrays)


def load_archive(
    path: str | os.PathLike[str],
    names: Iterable[str],
    version: int,
    *,
    kind: str,
    short: str,
    check: Callable[[dict[str, np.ndarray], dict[str, Any]], object] | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Returns the arrays with these names, and the settings, from a file of `save_archive`.

    Raises ValueError, which names the file and the `kind` of record (or `short` for another
    version), if the file is anything else, or if `check` raises it. The checksum only shows that a
    file is unchanged, not that its arrays are consistent; that is the purpose of `check`.
    """
    with Path(path).open("rb") as file:
        require(is_zipfile(file), f"{path} is no {kind} of llada_jax; allowed: a whole .npz file")
        file.seek(0)
        try:
            with ZipFile(file) as archive:
                text, settings = _settings(archive)
                file_version = settings.pop("format", None)
                is_known = file_version == version
                arrays = {name: _array(archive, name) for name in names} if is_known else {}
                if is_known:
                    intact = str(_array(archive, "sha256")) == _sha256(text, arrays)
                    require(intact, "its SHA-256 is another")
                    if check is not None:
                        check(arrays, settings)
        except _DAMAGED as error:
            raise ValueError(f"{path} is no {kind} of llada_jax: {error}") from error
    require(is_known, f"{path} has {short} format {file_version!r}; allowed: {version}")
    return arrays, settings


def _settings(archive: ZipFile) -> tuple[str, dict[str, Any]]:
    """Returns the settings as text and as an object, after checking the archive's size."""
    size = sum(info.file_size for info in archive.infolist())
    require(size <= _LARGEST, f"it would inflate to {size} bytes; allowed: up to {_LARGEST}")
    text = str(_array(archive, "settings"))
    settings = json.loads(text)
    require(isinstance(settings, dict), "its settings are no object")
    return text, settings


def _array(archive: ZipFile, name: str) -> np.ndarray:
    info = archive.getinfo(f"{name}.npy")
    method = info.compress_type
    require(method in (ZIP_STORED, ZIP_DEFLATED), f"{name} is packed by method {method}")
    with archive.open(info) as member:
        array = np.lib.format.read_array(member, allow_pickle=False)
        require(not member.read(1), f"{name} has more bytes than its array")
    return array


def _sha256(settings: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(settings.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
