"""Folders in the Hugging Face layout: `config.json` and safetensors, in one file or in shards."""

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from llada_jax.atomic import new_folder
from llada_jax.checkpoint.safetensors_files import (
    INDEX_FILE,
    SINGLE_FILE,
    stored_tensors,
)
from llada_jax.checkpoint.sources import (
    FLOATS,
    Checkpoint,
    ParamSource,
    checked,
    param_sources,
)
from llada_jax.checkpoint.tensors import kept_dtype
from llada_jax.config import ModelConfig, require, require_choice
from llada_jax.config.json_files import read_object
from llada_jax.model.families.config_json import config_from_hf, config_to_hf
from llada_jax.model.families.family import families
from llada_jax.model.params import ModelParams
from llada_jax.model.quantize import is_quantized

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
SaveDtype = Literal["float32", "bfloat16"]


def open_huggingface(folder: Path, family: str | None = None) -> Checkpoint:
    """Looks through a folder that has `config.json`, and `model.safetensors` or shards with their
    index. No tensor is read yet.

    Raises FileNotFoundError or ValueError: a missing file, a file that is cut short or unparsable,
    an unknown family, a tensor that is missing or of the wrong shape.
    """
    hf, listed = read_object(folder / CONFIG_FILE), folder / GENERATION_FILE
    generation = read_object(listed) if listed.is_file() else None
    stored = stored_tensors(folder)
    config = config_from_hf(hf, stored, family, generation)
    sources = param_sources(config, families()[config.family].names)
    return checked(Checkpoint(folder, config, sources, stored), tuple(FLOATS))


def save_huggingface(
    folder: str | PathLike[str],
    config: ModelConfig,
    params: ModelParams,
    dtype: SaveDtype = "bfloat16",
) -> None:
    """Writes `config.json`, in the family's own spelling, `model.safetensors`, and
    `generation_config.json` where several ids end an answer.

    A new folder appears only when it is complete; in an existing one these files are replaced,
    each at once, and other files stay. Raises ValueError for quantized parameters, for parameters
    that do not fit `config`, for a `config` that the family cannot spell, and for a folder of
    shards, whose index would still name them; OSError where the disk takes no more.
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
        except SafetensorError as error:  # all that it says of the system's own
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
