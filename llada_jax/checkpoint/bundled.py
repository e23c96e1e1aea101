"""Models that ship with the package."""

from os import PathLike
from pathlib import Path

_ASSETS = Path(__file__).parents[1] / "assets"


def bundled_names() -> tuple[str, ...]:
    """Returns the names of the bundled models."""
    return tuple(sorted(folder.name for folder in _ASSETS.iterdir() if folder.is_dir()))


def model_path(source: str | PathLike[str]) -> Path:
    """Returns where a model is: a bundled one's folder; of anything else, the path itself."""
    return _ASSETS / source if str(source) in bundled_names() else Path(source)
