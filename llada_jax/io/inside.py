"""Names that were read from a file, as paths in the folder that the file speaks of."""

import os
from pathlib import Path

_LONGEST = 255


def inside(folder: str | os.PathLike[str], name: str) -> Path:
    """Returns the path of `name` in a folder that the user chose.

    A plain name may be a symlink to anywhere: caches of the Hugging Face hub are made of them, and
    who chose the folder chose them too. A name with folders in it must still lie inside once every
    symlink on its way is followed, its own included.

    Raises ValueError for every other name: empty, absolute, with `..`, led out by a symlink, or
    longer than file systems have them.
    """
    parts, path = name.split("/"), os.path.join(folder, name)
    plain = {"", ".", ".."}.isdisjoint(parts) and "\0" not in name  # an absolute one begins with ""
    plain = plain and all(len(part.encode(errors="replace")) <= _LONGEST for part in parts)
    if plain and len(parts) > 1:
        plain = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    if not plain:
        raise ValueError(f"{name!r} is named by a file of {folder}; allowed: names inside it")
    return Path(path)
