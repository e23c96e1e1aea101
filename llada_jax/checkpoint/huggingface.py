"""Folders in the Hugging Face layout: `config.json` and safetensors, in one file or in shards."""

import json
import math
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from safetensors.numpy import save_file

from llada_jax.atomic import new_folder
from llada_jax.checkpoint.sources import (
    FLOATS,
    Checkpoint,
    ParamSource,
    StoredTensor,
    checked,
    param_sources,
)
from llada_jax.checkpoint.tensors import kept_dtype
from llada_jax.config import ModelConfig, require, require_choice
from llada_jax.model.families.config_json import config_from_hf, config_to_hf
from llada_jax.model.families.family import families
from llada_jax.model.params import ModelParams
from llada_jax.model.quantize import is_quantized

CONFIG_FILE = "config.json"
_SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SaveDtype = Literal["float32", "bfloat16"]


def open_huggingface(folder: Path) -> Checkpoint:
    """Looks through a folder that has `config.json`, and `model.safetensors` or shards with their
    index. No tensor is read yet.

    Raises FileNotFoundError or ValueError: a missing file, a file that is cut short or unparsable,
    an unknown family, a tensor that is missing or of the wrong shape.
    """
    hf = read_json(folder / CONFIG_FILE)
    stored = {
        name: tensor for file in _weight_files(folder) for name, tensor in _header(file).items()
    }
    config = config_from_hf(hf, stored)
    sources = param_sources(config, families()[config.family].names)
    return checked(Checkpoint(folder, config, sources, stored), tuple(FLOATS))


def read_json(file: Path) -> dict[str, Any]:
    """Reads a JSON object; ValueError names the file."""
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}") from error
    require(isinstance(content, dict), f"{file} is no JSON object")
    return content


def _weight_files(folder: Path) -> list[Path]:
    if (folder / _SINGLE_FILE).is_file():
        return [folder / _SINGLE_FILE]
    if not (folder / INDEX_FILE).is_file():
        pickled = sorted(path.name for path in folder.glob("*.bin"))
        require(
            not pickled,
            f"{folder} has its weights in {', '.join(pickled[:2])}; allowed: {_SINGLE_FILE} "
            "(convert it first: save_pretrained of transformers writes it)",
        )
        raise FileNotFoundError(f"no {_SINGLE_FILE} and no {INDEX_FILE} in {folder}")
    shards = read_json(folder / INDEX_FILE).get("weight_map")
    if not isinstance(shards, dict):
        raise ValueError(f"{folder / INDEX_FILE} lacks 'weight_map'")
    files = [folder / name for name in sorted(set(shards.values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}, named by {INDEX_FILE}")
    return files


def _header(file: Path) -> dict[str, StoredTensor]:
    """Reads what a safetensors file holds: 8 bytes of header length, a JSON header, the data."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        require(
            8 + length <= size,
            f"{file} is cut short: its header takes {8 + length} bytes, the file has {size}",
        )
        header = stream.read(length)
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        end = 8 + length + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        stored = {name: _stored(file, name, entry, 8 + length) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is no safetensors file: {error!r}") from error
    require(
        end <= size, f"{file} is cut short: its tensors end at {end} bytes, the file has {size}"
    )
    return stored


def _stored(file: Path, name: str, entry: Mapping[str, Any], data: int) -> StoredTensor:
    shape = tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    dtype = FLOATS.get(entry["dtype"])
    if dtype is not None:
        require(
            end - begin == math.prod(shape) * dtype.itemsize,
            f"{name} has {end - begin} bytes for shape {list(shape)} of {entry['dtype']}",
        )
    rows = shape[0] if shape else 1
    return StoredTensor(
        name,
        file,
        offset=data + begin,
        shape=shape,
        row_bytes=(end - begin) // max(rows, 1),
        kind=entry["dtype"],
        dtype=dtype,
    )


def save_huggingface(
    folder: str | PathLike[str],
    config: ModelConfig,
    params: ModelParams,
    dtype: SaveDtype = "bfloat16",
) -> None:
    """Writes `config.json`, in the family's own spelling, and `model.safetensors`.

    A new folder appears only when it is complete; in an existing one the two files are replaced,
    each at once, and other files stay. Raises ValueError for quantized parameters, for parameters
    that do not fit `config`, and for a `config` that the family cannot spell.
    """
    require_choice("dtype", dtype, SaveDtype)
    hf = {**config_to_hf(config), "torch_dtype": dtype}
    sources = param_sources(config, families()[config.family].names)
    tensors = _tensors(sources, jax.tree.leaves(params, is_leaf=is_quantized), np.dtype(dtype))
    with new_folder(Path(folder), replace=False) as part:
        save_file(tensors, part / _SINGLE_FILE, metadata={"format": "pt"})
        (part / CONFIG_FILE).write_text(json.dumps(hf, indent=2, sort_keys=True) + "\n")


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
        require(
            not is_quantized(leaf),
            f"{name} is quantized; allowed: floats (save_orbax keeps quantized ones)",
        )
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
