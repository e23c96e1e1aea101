"""Writing a folder so that its name never stands for half of it."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_folder(target: Path, *, replace: bool) -> Iterator[Path]:
    """A folder to fill, beside `target`, that takes the name `target` once it is complete.

    Where `target` exists, it is replaced as a whole if `replace` is set; else its files of the same
    names are replaced one by one, and others stay. Where the body fails, nothing is left behind.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.parent / f".{target.name}.{uuid.uuid4().hex}"
    part.mkdir()
    try:
        yield part
        if not target.exists():
            part.rename(target)
        elif replace:
            old = part.with_suffix(".old")
            target.rename(old)
            part.rename(target)
            shutil.rmtree(old)
        else:
            for file in part.iterdir():
                file.replace(target / file.name)
    finally:
        shutil.rmtree(part, ignore_errors=True)
