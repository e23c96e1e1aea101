"""Loading and saving models: Hugging Face folders, GGUF files, bundled models. And which model is
meant: where it lies, and what its files hold, wherever they are."""

import hashlib
from collections.abc import Collection
from os import PathLike
from pathlib import Path

from jax.sharding import Mesh

from llada_jax.checkpoint.adapter import ADAPTER_CONFIG, adapter_settings
from llada_jax.checkpoint.gguf import open_gguf, read_header
from llada_jax.checkpoint.hub import hub_folder
from llada_jax.checkpoint.huggingface import (
    CONFIG_FILE,
    GENERATION_FILE,
    INDEX_FILE,
    lacks_weights,
    open_huggingface,
    outline,
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
    ignore_keys: Collection[str] = (),
    adapter: str | PathLike[str] | None = None,
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
    checkpoint, tokenizer_folder = open_checkpoint(source, family, ignore_keys, adapter)
    if str(source) in bundled_names():
        dtype = dtype or "float32"
    return checkpoint.config, read_params(checkpoint, dtype, experts, mesh), tokenizer_folder


def open_checkpoint(
    source: str | PathLike[str],
    family: str | None = None,
    ignore_keys: Collection[str] = (),
    adapter: str | PathLike[str] | None = None,
) -> tuple[Checkpoint, Path | None]:
    """Looks a model through, and returns what it holds and where its tokenizer is.

    Arguments and errors as `load_params`."""
    path = model_path(source)
    folder = path if path.is_dir() else path.parent
    tokenizer_folder = folder if has_tokenizer(folder) else None
    if path.suffix == ".gguf":
        require(adapter is None, f"{path} takes no adapter; allowed: the folder of a base")
        return open_gguf(path, family), tokenizer_folder or path
    _require_model_folder(path)
    if adapter is not None:
        adapter = model_path(adapter)
    return open_huggingface(path, family, ignore_keys, adapter), tokenizer_folder


def describe_checkpoint(
    source: str | PathLike[str], family: str | None = None, ignore_keys: Collection[str] = ()
) -> tuple[Checkpoint, Path | None, int | None]:
    """Returns what a model holds, as `open_checkpoint`, and the bytes of its tensors; without the
    tensors, and with the bytes that an index has, if there are no weights yet."""
    path = model_path(source, weights=False)
    if (path / CONFIG_FILE).is_file() and lacks_weights(path):
        checkpoint, size = outline(path, family, ignore_keys)
        return checkpoint, path if has_tokenizer(path) else None, size
    checkpoint, folder = open_checkpoint(path, family, ignore_keys)
    sizes = (tensor.row_bytes * tensor.shape[0] for tensor in checkpoint.stored.values())
    return checkpoint, folder, sum(sizes)


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
    if not path.exists():
        raise FileNotFoundError(f"no model at {str(path)!r}; {_allowed()}")
    require(
        path.suffix not in _PICKLED,
        f"{str(path)!r} has pickled weights; allowed: safetensors (convert it first: "
        "save_pretrained of transformers writes them)",
    )
    require(path.is_dir(), f"{str(path)!r} is no model; {_allowed()}")
    if (path / ADAPTER_CONFIG).is_file() and not (path / CONFIG_FILE).is_file():
        base = adapter_settings(path).get("base_model_name_or_path")
        raise ValueError(
            f"{path} is a LoRA adapter, of {base!r}; allowed: the base with it, "
            f"load(base, adapter={str(path)!r})"
        )
    if not (path / CONFIG_FILE).is_file():
        raise FileNotFoundError(f"no {CONFIG_FILE} in {path}; {_allowed()}")


def _allowed() -> str:
    return (
        f"allowed: a bundled model ({', '.join(map(repr, bundled_names()))}), a folder with "
        f"{CONFIG_FILE}, a .gguf file, or a model of the hub (org/name[@revision])"
    )


def bundled_names() -> tuple[str, ...]:
    """Returns the names of the bundled models."""
    return tuple(sorted(folder.name for folder in _ASSETS.iterdir() if folder.is_dir()))


def model_path(source: str | PathLike[str], *, weights: bool = True) -> Path:
    """Returns where a model is: a bundled one's folder, a hub model's folder in the cache of the
    hub, of anything else the path itself.

    What the cache of the hub lacks is downloaded, except for weights that are not needed. Raises
    FileNotFoundError, with the reason, if that cannot be.
    """
    if str(source) in bundled_names():
        return _ASSETS / source

    def complete(folder: Path) -> bool:
        described = any((folder / name).is_file() for name in (CONFIG_FILE, ADAPTER_CONFIG))
        return described and not (weights and lacks_weights(folder))

    path, why = hub_folder(Path(source), complete, weights)
    if why and not path.exists():
        raise FileNotFoundError(f"no model at {str(path)!r}; {_allowed()} (of the hub: {why})")
    return path


def fingerprint(source: str | PathLike[str], adapter: str | PathLike[str] | None = None) -> str:
    """Names a model by the content of its configuration, weights, tokenizer and chat template, and
    its adapter's, 32 hexadecimal digits. Large files are read once, and then known by their size
    and times."""
    own = content_hash(model_path(source), _files(source))
    if adapter is None:
        return own
    return hashlib.sha256(f"{own} {fingerprint(adapter)}".encode()).hexdigest()[:32]


def file_states(
    source: str | PathLike[str], adapter: str | PathLike[str] | None = None
) -> list[list[int]]:
    """Returns size and times of the files that `fingerprint` names: others once one is written."""
    added = [] if adapter is None else _files(adapter)
    return list(map(file_state, [*_files(source), *added]))


def _files(source: str | PathLike[str]) -> list[Path]:
    path = model_path(source)
    folder = path if path.is_dir() else path.parent
    if path.is_file():
        found = [path]
    else:
        named = (CONFIG_FILE, GENERATION_FILE, INDEX_FILE, ADAPTER_CONFIG)
        found = [*(path / name for name in named), *path.glob("*.safetensors")]
    found += [folder / name for name in TOKENIZER_FILES]
    return sorted(file for file in found if file.is_file())
