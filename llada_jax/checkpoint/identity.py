"""Which model is meant: where it lies, as one that ships with the package does, and what its files
hold, wherever they are."""

from os import PathLike
from pathlib import Path

from llada_jax.checkpoint.huggingface import CONFIG_FILE, GENERATION_FILE, INDEX_FILE
from llada_jax.content import content_hash, file_state
from llada_jax.text import TOKENIZER_FILES

_ASSETS = Path(__file__).parents[1] / "assets"


def bundled_names() -> tuple[str, ...]:
    """Returns the names of the bundled models."""
    return tuple(sorted(folder.name for folder in _ASSETS.iterdir() if folder.is_dir()))


def model_path(source: str | PathLike[str]) -> Path:
    """Returns where a model is: a bundled one's folder; of anything else, the path itself."""
    return _ASSETS / source if str(source) in bundled_names() else Path(source)


def fingerprint(source: str | PathLike[str]) -> str:
    """Names a model by the content of its configuration, weights, tokenizer and chat template, 32
    hexadecimal digits.

    Large files are read once, and then known by their size and times.
    """
    return content_hash(model_path(source), _files(source))


def file_states(source: str | PathLike[str]) -> list[list[int]]:
    """Returns size and times of the files that `fingerprint` names: others once one is written."""
    return list(map(file_state, _files(source)))


def _files(source: str | PathLike[str]) -> list[Path]:
    path = model_path(source)
    folder = path if path.is_dir() else path.parent
    if path.is_file():
        found = [path]
    else:
        named = (CONFIG_FILE, GENERATION_FILE, INDEX_FILE)
        found = [*(path / name for name in named), *path.glob("*.safetensors")]
    found += [folder / name for name in TOKENIZER_FILES]
    return sorted(file for file in found if file.is_file())
