"""Folders in the Hugging Face layout: `config.json` and safetensors, in one file or in shards."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import jax
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from llada_jax.atomic import new_folder
from llada_jax.checkpoint.streamed import StreamedParams
from llada_jax.checkpoint.tensors import (
    Placement,
    Stored,
    check_dtype,
    check_tensors,
    kept_dtype,
    placements,
    read_params,
    view_as,
)
from llada_jax.config import ModelConfig, require, require_choice
from llada_jax.model.families import FAMILIES, config_from_hf, config_to_hf
from llada_jax.model.params import ModelParams
from llada_jax.model.quantize import QuantArray

CONFIG_FILE = "config.json"
_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_KINDS: Mapping[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
SaveDtype = Literal["float32", "bfloat16"]


def load_huggingface(
    folder: str | PathLike[str], dtype: str | None = None
) -> tuple[ModelConfig, ModelParams]:
    """Load a checkpoint of any known family.

    Args:
      folder: has `config.json`, and `model.safetensors` or shards with their index.
      dtype: None (as stored), "float32", "bfloat16", "int8" or "int4". With the last two the
        matrices are quantized while they load and the rest becomes bfloat16. A router stored as
        float32 stays float32, which is what it is computed in.

    Raises FileNotFoundError or ValueError before any tensor is read: a missing file, a file that is
    cut short or unparsable, an unknown family, a tensor that is missing or of the wrong shape.
    """
    check_dtype(dtype)
    config, placed, stored = _contents(Path(folder), dtype)
    return config, read_params(config, placed, stored, dtype, Path(folder))


def stream_huggingface(folder: str | PathLike[str]) -> tuple[ModelConfig, StreamedParams]:
    """As `load_huggingface`, but nothing is read yet."""
    config, placed, stored = _contents(Path(folder), None)
    return config, StreamedParams(config, placed, stored)


def _contents(
    folder: Path, dtype: str | None
) -> tuple[ModelConfig, list[Placement], dict[str, Stored]]:
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}")
    hf = read_json(folder / CONFIG_FILE)
    stored = {
        name: tensor for file in _weight_files(folder) for name, tensor in _header(file).items()
    }
    config = config_from_hf(hf, stored)
    placed = placements(config, FAMILIES[config.family].names)
    check_tensors(placed, stored, dtype, folder, tuple(_KINDS))
    return config, placed, stored


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object; FileNotFoundError or ValueError name the file."""
    if not file.is_file():
        raise FileNotFoundError(f"no {file.name} in {file.parent}")
    try:
        content = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}") from error
    require(isinstance(content, dict), f"{file} is no JSON object")
    return content


def _weight_files(folder: Path) -> list[Path]:
    if (folder / _SINGLE_FILE).is_file():
        return [folder / _SINGLE_FILE]
    if not (folder / _INDEX_FILE).is_file():
        raise FileNotFoundError(f"no {_SINGLE_FILE} and no {_INDEX_FILE} in {folder}")
    shards = read_json(folder / _INDEX_FILE).get("weight_map")
    if not isinstance(shards, dict):
        raise ValueError(f"{folder / _INDEX_FILE} lacks 'weight_map'")
    files = [folder / name for name in sorted(set(shards.values()))]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}, named by {_INDEX_FILE}")
    return files


def _header(file: Path) -> dict[str, Stored]:
    """What a safetensors file holds: 8 bytes of header length, a JSON header, then the data."""
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


def _stored(file: Path, name: str, entry: Mapping[str, Any], data: int) -> Stored:
    shape = tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    dtype = _KINDS.get(entry["dtype"])
    if dtype is not None:
        require(
            end - begin == math.prod(shape) * dtype.itemsize,
            f"{name} has {end - begin} bytes for shape {list(shape)} of {entry['dtype']}",
        )
    rows = shape[0] if shape else 1
    return Stored(
        file,
        offset=data + begin,
        shape=shape,
        row_bytes=(end - begin) // max(rows, 1),
        kind=entry["dtype"],
        dtype=dtype,
        decode=partial(view_as, dtype),
    )


def save_huggingface(
    folder: str | PathLike[str],
    config: ModelConfig,
    params: ModelParams,
    dtype: SaveDtype = "bfloat16",
) -> None:
    """Write `config.json`, in the family's own spelling, and `model.safetensors`.

    A new folder appears only when it is complete; in an existing one the two files are replaced,
    each at once, and other files stay. Raises ValueError for quantized parameters, for parameters
    that do not fit `config`, and for a `config` that the family cannot spell.
    """
    require_choice("dtype", dtype, SaveDtype)
    hf = {**config_to_hf(config), "torch_dtype": dtype}
    placed = placements(config, FAMILIES[config.family].names)
    leaves = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, QuantArray))
    _check_leaves(placed, leaves)
    tensors = _tensors(placed, leaves, np.dtype(dtype))
    with new_folder(Path(folder), replace=False) as part:
        save_file(tensors, part / _SINGLE_FILE, metadata={"format": "pt"})
        (part / CONFIG_FILE).write_text(json.dumps(hf, indent=2, sort_keys=True) + "\n")


def _check_leaves(placed: Sequence[Placement], leaves: Sequence[Any]) -> None:
    require(
        len(placed) == len(leaves),
        f"the parameters have {len(leaves)} arrays, the configuration {len(placed)}",
    )
    for place, leaf in zip(placed, leaves, strict=True):
        require(
            not isinstance(leaf, QuantArray),
            f"{place.tensors[0]} is quantized; allowed: floats (save_orbax keeps quantized ones)",
        )
        require(
            leaf.shape == place.spec.shape,
            f"{place.tensors[0]}: the parameter is {list(leaf.shape)}, expected "
            f"{list(place.spec.shape)}",
        )


def _tensors(
    placed: Sequence[Placement], leaves: Sequence[Any], dtype: np.dtype
) -> dict[str, np.ndarray]:
    parts: dict[str, list[np.ndarray]] = {}
    for place, leaf in zip(placed, leaves, strict=True):
        array = np.asarray(leaf).astype(kept_dtype(place.path, leaf.dtype, dtype))
        array = array.reshape(len(place.tensors), *place.part)
        for name, part in zip(place.tensors, array, strict=True):
            parts.setdefault(name, []).append(part)
    return {
        name: np.ascontiguousarray(rows[0] if len(rows) == 1 else np.concatenate(rows))
        for name, rows in parts.items()
    }
