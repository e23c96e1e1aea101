"""Checkpoints of our own: the tree as it is, quantized or not, through Orbax."""

import dataclasses
import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, Sharding, SingleDeviceSharding

from llada_jax.atomic import new_folder
from llada_jax.config import ModelConfig, require
from llada_jax.config.json_files import read_object
from llada_jax.config_files import checked_dataclass
from llada_jax.model.finite import require_finite_tree
from llada_jax.model.mesh import require_divides, shardings
from llada_jax.model.params import ModelParams, ParamSpec, abstract_params, parameter_name
from llada_jax.model.quantize import INT4_GROUP, QuantArray, is_quantized

DESCRIPTION_FILE = "llada_jax.json"
TREE_FOLDER = "params"
_DTYPES = ("float32", "bfloat16", "float16", "int8", "int4")


def save_orbax(folder: str | PathLike[str], config: ModelConfig, params: ModelParams) -> None:
    """Writes the configuration as JSON and the tree beside it, bit for bit.

    The folder appears only when it is complete. An earlier checkpoint of that name is replaced as a
    whole; ValueError where the folder holds anything else.
    """
    from orbax.checkpoint import v1 as ocp

    folder = Path(folder).absolute()
    if folder.exists() and not (folder / DESCRIPTION_FILE).is_file():
        require(
            folder.is_dir() and not any(folder.iterdir()),
            f"{folder} exists; allowed: a new or empty folder, or a checkpoint to replace",
        )
    leaves = jax.tree.leaves_with_path(params, is_leaf=is_quantized)
    description = {
        "config": dataclasses.asdict(config),
        "dtypes": {parameter_name(p): jax.tree.leaves(leaf)[0].dtype.name for p, leaf in leaves},
    }
    with new_folder(folder, replace=True) as part:
        ocp.save(str(part / TREE_FOLDER), params)
        (part / DESCRIPTION_FILE).write_text(json.dumps(description, indent=2) + "\n")


def load_orbax(
    folder: str | PathLike[str], mesh: Mesh | None = None
) -> tuple[ModelConfig, ModelParams]:
    """Loads what `save_orbax` wrote, in the dtypes it was saved with; onto any mesh that divides.

    Raises FileNotFoundError or ValueError for a folder whose content is damaged; NaN and infinity
    are damage.
    """
    from orbax.checkpoint import v1 as ocp

    folder = Path(folder).absolute()
    description = read_object(folder / DESCRIPTION_FILE)
    if not (folder / TREE_FOLDER).is_dir():
        raise FileNotFoundError(f"no {TREE_FOLDER} in {folder}")
    try:
        config = checked_dataclass(ModelConfig, description.get("config", {}))
    except ValueError as error:
        raise ValueError(f"{folder / DESCRIPTION_FILE} describes no model: {error}") from error
    dtypes: Any = description.get("dtypes")
    require(isinstance(dtypes, dict), f"{folder / DESCRIPTION_FILE} has no dtypes")
    tree = _abstract_tree(config, dtypes, folder, mesh)
    try:
        params = ocp.load(str(folder / TREE_FOLDER), tree)
    except Exception as error:  # Orbax raises whatever it meets
        problem = f"{type(error).__name__}: {error!s:.300}"
        raise ValueError(f"{folder / TREE_FOLDER} is damaged: {problem}") from error
    require_finite_tree(str(folder), params)
    return config, params


def _abstract_tree(
    config: ModelConfig, dtypes: Mapping[str, str], folder: Path, mesh: Mesh | None
) -> ModelParams:
    one = SingleDeviceSharding(jax.devices()[0])

    def abstract(shape: tuple[int, ...], dtype: str, where: Sharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=where)

    def describe(path: tuple[Any, ...], spec: ParamSpec) -> Any:
        name = parameter_name(path)
        require(name in dtypes, f"{folder / DESCRIPTION_FILE} lacks {name}")
        dtype = dtypes[name]
        require(dtype in _DTYPES, f"{name} is {dtype!r}; allowed: {', '.join(_DTYPES)}")
        where = None if mesh is None else shardings(spec, mesh, dtype)
        if dtype not in ("int8", "int4"):
            return abstract(spec.shape, dtype, where or one)
        of_values, of_scale = where or (one, one)
        groups = 1 if dtype == "int8" else spec.shape[-1] // INT4_GROUP
        scale = abstract((*spec.shape[:-1], groups), "float32", of_scale)
        return QuantArray(abstract(spec.shape, dtype, of_values), scale)  # pyright: ignore

    if mesh is not None:
        require_divides(config, mesh, "int4" if "int4" in dtypes.values() else None)
    return jax.tree.map_with_path(describe, abstract_params(config))
