"""Models that ship with the package."""

from importlib.resources import files
from os import PathLike
from pathlib import Path


def bundled_names() -> tuple[str, ...]:
    """Returns the names of the bundled models."""
    return tuple(sorted(folder.name for folder in _assets().iterdir() if folder.is_dir()))


def bundled_folder(name: str) -> Path:
    """Returns the folder of a bundled model; ValueError lists the names."""
    if name not in bundled_names():
        known = ", ".join(map(repr, bundled_names()))
        raise ValueError(f"bundled model is {name!r}; allowed: {known}")
    return _assets() / name


def model_path(source: str | PathLike[str]) -> Path:
    """Returns where a model is: a bundled one's folder; of anything else, the path itself."""
    name = str(source)
    return bundled_folder(name) if name in bundled_names() else Path(source)


def _assets() -> Path:
    return Path(str(files("llada_jax"))) / "assets"
