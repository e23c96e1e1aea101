"""Resolves names that were read from a file to paths inside the file's folder."""

import os
from pathlib import Path

_LONGEST = 255


def inside(folder: str | os.PathLike[str], name: str) -> Path:
    """Returns the path of `name` in a folder that the user chose.

    A plain name may be a symlink to any place: caches of the Hugging Face hub consist of them, and
    a user who chose the folder trusts its symlinks. A name with subfolders must be inside the
    folder after resolving all symlinks.

    Raises ValueError for every other name: empty, absolute, with `..`, outside through a symlink,
    or too long for file systems.
    """
    parts, path = name.split("/"), os.path.join(folder, name)
    plain = {"", ".", ".."}.isdisjoint(parts) and "\0" not in name  # absolute: first part is ""
    plain = plain and all(len(part.encode(errors="replace")) <= _LONGEST for part in parts)
    if plain and len(parts) > 1:
        plain = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    if not plain:
        raise ValueError(f"{name!r} is named by a file of {folder}; allowed: names inside it")
    return Path(path)
