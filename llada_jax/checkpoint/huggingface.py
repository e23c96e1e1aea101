"""Reads and writes Hugging Face folders: `config.json` and safetensors, in one file or in shards.

All files are checked before a tensor is read. The safetensors library validates each file's header;
this module then parses the same header for the position of each tensor, so that single rows can be
read without the rest of the tensor. Weights may be floats or quantized by MLX, and a LoRA adapter
can be merged while they are read.
"""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from llada_jax.checkpoint.adapter import (
    ADAPTER_WEIGHTS,
    DRAFT_CONFIG,
    adapter_settings,
    merge_adapter,
)
from llada_jax.checkpoint.config_json import config_from_hf, config_to_hf
from llada_jax.checkpoint.mlx import KINDS as MLX_KINDS
from llada_jax.checkpoint.mlx import mlx_settings, mlx_tensors
from llada_jax.checkpoint.sources import (
    FLOATS,
    Checkpoint,
    ParamSource,
    StoredTensor,
    checked,
    listed,
    param_sources,
    rows_of,
    tensor_shapes,
)
from llada_jax.checkpoint.tensors import kept_dtype
from llada_jax.config import ModelConfig, require, require_choice, shortened
from llada_jax.config.checks import parse_json, read_object
from llada_jax.io.atomic import new_folder
from llada_jax.io.inside import inside
from llada_jax.model.families.family import families
from llada_jax.model.params import ModelParams
from llada_jax.model.quantize import is_quantized

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SaveDtype = Literal["float32", "bfloat16"]


def open_huggingface(
    folder: Path,
    family: str | None = None,
    ignore_keys: Collection[str] = (),
    adapter: Path | None = None,
) -> Checkpoint:
    """Checks a folder, and optionally the folder of a LoRA adapter, and returns its checkpoint.

    No tensor of the base is read. Raises FileNotFoundError or ValueError for a file that is
    missing, truncated or unparsable, an unknown family, and a tensor that is missing or has the
    wrong shape.
    """
    settings = None if adapter is None else adapter_settings(adapter)
    require(
        adapter is None or not (adapter / DRAFT_CONFIG).exists(),
        f"{adapter} drafts and is not merged; allowed: load(..., drafter={str(adapter)!r})",
    )
    hf, quantization = mlx_settings(read_object(folder / CONFIG_FILE))
    stored = stored_tensors(folder)
    if quantization is not None:
        stored = mlx_tensors(stored, quantization)
    if adapter is not None and settings is not None:
        stored = merge_adapter(stored, tensors_of(adapter / ADAPTER_WEIGHTS), settings, adapter)
    config, sources = _config_and_sources(folder, hf, stored, family, ignore_keys)
    ignored = tuple(ignore_keys)
    return checked(Checkpoint(folder, config, sources, stored, ignored), (*FLOATS, *MLX_KINDS))


def lacks_weights(folder: Path) -> bool:
    """Returns whether a folder has no weights in any format, or lacks some of its shards, as during
    a download."""
    if (folder / INDEX_FILE).is_file():
        files = _file_of(folder, read_object(folder / INDEX_FILE)).values()
        return not all(os.path.isfile(inside(folder, name)) for name in files)
    return not any(file.suffix in (".safetensors", ".bin") for file in folder.iterdir())


def outline(
    folder: Path, family: str | None = None, ignore_keys: Collection[str] = ()
) -> tuple[Checkpoint, int | None]:
    """Returns the checkpoint of a folder without weights, and the size of its tensors in bytes.

    The checkpoint has no tensors. The size comes from the index of the shards, and is None if the
    index or its `total_size` is missing. Raises FileNotFoundError or ValueError as
    `open_huggingface`, and ValueError if the index lacks tensors that the configuration needs.
    """
    index = read_object(folder / INDEX_FILE) if (folder / INDEX_FILE).is_file() else None
    names = None if index is None else [*_file_of(folder, index)]
    hf, _ = mlx_settings(read_object(folder / CONFIG_FILE))
    config, sources = _config_and_sources(folder, hf, names, family, ignore_keys)
    missing = [name for name in tensor_shapes(sources) if names is not None and name not in names]
    require(not missing, f"{folder / INDEX_FILE} lacks {listed(missing)}")
    metadata = (index or {}).get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    size = size if isinstance(size, int) else None
    return Checkpoint(folder, config, sources, {}, tuple(ignore_keys)), size


def _config_and_sources(
    folder: Path,
    hf: Mapping[str, Any],
    names: Collection[str] | None,
    family: str | None,
    ignore_keys: Collection[str],
) -> tuple[ModelConfig, list[ParamSource]]:
    """Returns the configuration, and the source of each parameter among tensors of these names."""
    generation_file = folder / GENERATION_FILE
    generation = read_object(generation_file) if generation_file.is_file() else None
    config = config_from_hf(hf, names, family, generation, ignore_keys)
    row, stored = families()[config.family], {*(names or ())}
    choices = (param_sources(config, each) for each in (row.names, row.other_names) if each)
    return config, max(choices, key=lambda found: len(stored.intersection(tensor_shapes(found))))


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Returns the tensors of a folder: of the shards in its index, or of `model.safetensors`.

    Raises FileNotFoundError or ValueError for a file that is missing or damaged, and for shards
    whose tensors differ from their entries in the index.
    """
    index = folder / INDEX_FILE
    if index.is_file():
        return _mapped_tensors(folder, _file_of(folder, read_object(index)))
    if not (folder / SINGLE_FILE).is_file():
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        require(
            not pickled,
            f"{folder} has its weights in {listed(pickled)}; allowed: {SINGLE_FILE} (convert it "
            "first: save_pretrained of transformers writes it)",
        )
        raise FileNotFoundError(f"no {SINGLE_FILE} and no {INDEX_FILE} in {folder}")
    return tensors_of(folder / SINGLE_FILE)


def _file_of(folder: Path, index: Mapping[str, Any]) -> dict[str, str]:
    file_of = index.get("weight_map")
    require(
        isinstance(file_of, dict) and all(isinstance(name, str) for name in file_of.values()),
        f"{folder / INDEX_FILE} lacks 'weight_map', the name of a file for each tensor",
    )
    return file_of  # pyright: ignore


def _mapped_tensors(folder: Path, file_of: Mapping[str, str]) -> dict[str, StoredTensor]:
    files = {name: inside(folder, name) for name in dict.fromkeys(file_of.values())}
    missing = [name for name, file in files.items() if not os.path.isfile(file)]
    if missing:
        raise FileNotFoundError(f"{folder} lacks {listed(missing)}, named by {INDEX_FILE}")
    require(  # files of other tensors, such as adapters, are allowed
        SINGLE_FILE in files or not (folder / SINGLE_FILE).exists(),
        f"{folder} has {SINGLE_FILE}, which {INDEX_FILE} does not name; allowed: one of the two",
    )
    stored: dict[str, StoredTensor] = {}
    for name, file in files.items():
        tensors = tensors_of(file)
        mapped = {tensor for tensor, file_name in file_of.items() if file_name == name}
        missing, extra = mapped - tensors.keys(), tensors.keys() - mapped
        for wrong, verb in ((missing, "lacks"), (extra, "also has")):
            require(not wrong, f"{file} {verb} {listed(sorted(wrong))}, against {INDEX_FILE}")
        stored |= tensors
    return stored


def tensors_of(file: Path) -> dict[str, StoredTensor]:
    """Returns the tensors of a safetensors file: 8 bytes with the length of the header, a JSON
    header, then the data."""
    if not file.is_file():
        raise FileNotFoundError(f"no file {file}")
    wrong = f"{file} is no safetensors file, or is cut short"
    try:
        with safe_open(file, "numpy"):  # maps the file and validates its header
            pass
    except (SafetensorError, OSError) as error:
        raise ValueError(shortened(f"{wrong}: {error}")) from error
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        # The library silently keeps the last of two tensors with the same name.
        entries = parse_json(stream.read(length), wrong, "each tensor once")
    entries.pop("__metadata__", None)
    return {name: _stored(file, name, entry, 8 + length) for name, entry in entries.items()}


def _stored(file: Path, name: str, entry: Mapping[str, Any], data: int) -> StoredTensor:
    shape = rows_of(tuple(entry["shape"]))  # the experts of a layer may be stacked
    begin, end = entry["data_offsets"]
    rows = shape[0] if shape else 1
    return StoredTensor(
        name,
        file,
        offset=data + begin,
        shape=shape,
        row_bytes=(end - begin) // max(rows, 1),
        kind=entry["dtype"],
        dtype=FLOATS.get(entry["dtype"]),
    )


def save_huggingface(
    folder: str | os.PathLike[str],
    config: ModelConfig,
    params: ModelParams,
    dtype: SaveDtype = "bfloat16",
) -> None:
    """Writes `config.json` with the family's keys, `model.safetensors`, and, if several ids end an
    answer, `generation_config.json`.

    A new folder appears only when it is complete. In an existing folder each of these files is
    replaced atomically, and other files stay.

    Raises:
      ValueError: The parameters are quantized or do not fit `config`, the family has no keys for
        `config`, or the folder has the index of shards, which would still refer to the old files.
      OSError: The files cannot be written, for example because the disk is full.
    """
    require_choice("dtype", dtype, SaveDtype)
    require(
        not Path(folder, INDEX_FILE).exists(),
        f"{folder} has {INDEX_FILE}; allowed: a folder without shards",
    )
    hf = {**config_to_hf(config), "torch_dtype": dtype}
    sources = param_sources(config, families()[config.family].names)
    tensors = _tensors(sources, jax.tree.leaves(params, is_leaf=is_quantized), np.dtype(dtype))
    with new_folder(Path(folder)) as part:
        try:
            save_file(tensors, part / SINGLE_FILE, metadata={"format": "pt"})
        except SafetensorError as error:  # the library's class for errors of the system
            raise OSError(f"{folder} was not written: {error}") from error
        (part / CONFIG_FILE).write_text(json.dumps(hf, indent=2, sort_keys=True) + "\n")
        if config.stop_ids:
            ends = {"eos_token_id": [config.eos_id, *config.stop_ids]}
            (part / GENERATION_FILE).write_text(json.dumps(ends, indent=2) + "\n")


def _tensors(
    sources: Sequence[ParamSource], leaves: Sequence[Any], dtype: np.dtype
) -> dict[str, np.ndarray]:
    require(
        len(sources) == len(leaves),
        f"the parameters have {len(leaves)} arrays, the configuration {len(sources)}",
    )
    parts: dict[str, list[np.ndarray]] = {}
    for source, leaf in zip(sources, leaves, strict=True):
        name, shape = source.tensors[0], source.spec.shape
        require(not is_quantized(leaf), f"{name} is quantized; allowed: floats")
        require(
            leaf.shape == shape,
            f"{name}: the parameter is {list(leaf.shape)}, expected {list(shape)}",
        )
        array = np.asarray(leaf).astype(kept_dtype(source.last_name, leaf.dtype, dtype))
        array = array.reshape(len(source.tensors), *source.part)
        for name, part in zip(source.tensors, array, strict=True):
            parts.setdefault(name, []).append(part)
    return {
        name: np.ascontiguousarray(rows[0] if len(rows) == 1 else np.concatenate(rows))
        for name, rows in parts.items()
    }
