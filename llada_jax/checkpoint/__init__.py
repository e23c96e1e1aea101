"""Loading and saving models: Hugging Face folders, GGUF files, bundled models. And which model is
meant: where it lies, and what its files hold, wherever they are."""

import re
from os import PathLike
from pathlib import Path

from jax.sharding import Mesh

from llada_jax.checkpoint.gguf import open_gguf, read_header
from llada_jax.checkpoint.huggingface import (
    CONFIG_FILE,
    GENERATION_FILE,
    INDEX_FILE,
    open_huggingface,
    save_huggingface,
)
from llada_jax.checkpoint.sources import Checkpoint
from llada_jax.checkpoint.tensors import Dtype, read_params
from llada_jax.config import ModelConfig, require, require_choice, shortened
from llada_jax.io.content import content_hash, file_state
from llada_jax.model.params import ModelParams
from llada_jax.text import TOKENIZER_FILES, Tokenizer, has_tokenizer
from llada_jax.tokenizer_sources import GGUF_LISTS

_ASSETS = Path(__file__).parents[1] / "assets"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


def load_params(
    source: str | PathLike[str],
    dtype: str | None = None,
    family: str | None = None,
    experts: bool = True,
    mesh: Mesh | None = None,
) -> tuple[ModelConfig, ModelParams, Path | None]:
    """Loads a model from wherever it is; arguments and errors as `llada_jax.load`, of no exports.

    With int8 and int4, matrices are quantized while they load and the rest becomes bfloat16. A
    router stored as float32 stays float32, which is what it is computed in. Routed experts that are
    left out are None.

    Returns:
      The configuration, the parameters, and where `read_tokenizer` finds the tokenizer; None for a
      folder without one.
    """
    require_choice("dtype", dtype, Dtype)
    checkpoint, tokenizer_folder = open_checkpoint(source, family)
    if str(source) in bundled_names():
        dtype = dtype or "float32"
    return checkpoint.config, read_params(checkpoint, dtype, experts, mesh), tokenizer_folder


def open_checkpoint(
    source: str | PathLike[str], family: str | None = None
) -> tuple[Checkpoint, Path | None]:
    """Looks a model through, and returns what it holds and where its tokenizer is.

    Arguments and errors as `load_params`."""
    path = model_path(source)
    folder = path if path.is_dir() else path.parent
    tokenizer_folder = folder if has_tokenizer(folder) else None
    if path.suffix == ".gguf":
        return open_gguf(path), tokenizer_folder or path
    _require_model_folder(path)
    return open_huggingface(path, family), tokenizer_folder


def read_tokenizer(source: Path | None) -> Tokenizer | None:
    """Reads the tokenizer of a folder, or of a GGUF file: that of its folder, or else that in its
    metadata. None if there is none.

    Raises ValueError for what cannot be read or is not allowed."""
    if source is None:
        return None
    folder = source if source.is_dir() else source.parent
    if source.is_dir() or has_tokenizer(folder):
        return Tokenizer.from_folder(folder)
    try:
        metadata, _ = read_header(source, GGUF_LISTS)
    except ValueError as error:
        raise ValueError(shortened(f"{source} is no GGUF file: {error}")) from error
    return Tokenizer.from_gguf(metadata, source)


def _require_model_folder(path: Path) -> None:
    allowed = (
        f"allowed: a bundled model ({', '.join(map(repr, bundled_names()))}), a folder with "
        f"{CONFIG_FILE}, or a .gguf file"
    )
    if not path.exists():
        is_hub_id = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", str(path)) is not None
        hint = f" (of the hub: download it first, hf download {path} --local-dir FOLDER)"
        raise FileNotFoundError(f"no model at {str(path)!r}; {allowed}{hint if is_hub_id else ''}")
    require(
        path.suffix not in _PICKLED,
        f"{str(path)!r} has pickled weights; allowed: safetensors (convert it first: "
        "save_pretrained of transformers writes them)",
    )
    require(path.is_dir(), f"{str(path)!r} is no model; {allowed}")
    if not (path / CONFIG_FILE).is_file():
        raise FileNotFoundError(f"no {CONFIG_FILE} in {path}; {allowed}")


def bundled_names() -> tuple[str, ...]:
    """Returns the names of the bundled models."""
    return tuple(sorted(folder.name for folder in _ASSETS.iterdir() if folder.is_dir()))


def model_path(source: str | PathLike[str]) -> Path:
    """Returns where a model is: a bundled one's folder; of anything else, the path itself."""
    return _ASSETS / source if str(source) in bundled_names() else Path(source)


def fingerprint(source: str | PathLike[str]) -> str:
    """Names a model by the content of its configuration, weights, tokenizer and chat template, 32
    hexadecimal digits. Large files are read once, and then known by their size and times."""
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
