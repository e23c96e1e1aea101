"""Reads and writes the folder of a gated-LoRA drafter.

Its LoRA matrices are an adapter in peft's layout (`adapter_config.json` and
`adapter_model.safetensors`). `draft.safetensors` has the other arrays, and `draft.json` the
target's configuration and fingerprint.
"""

import json
from collections.abc import Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file

from llada_jax.checkpoint.adapter import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    DRAFT_CONFIG,
    PREFIX,
    adapter_settings,
)
from llada_jax.checkpoint.config_json import config_from_hf, config_to_hf
from llada_jax.checkpoint.huggingface import tensors_of
from llada_jax.checkpoint.sources import FLOATS, param_sources
from llada_jax.config import LoraConfig, ModelConfig, require
from llada_jax.config.checks import read_object
from llada_jax.draft.files import require_ids, require_tensors
from llada_jax.draft.gated_lora import GatedLoraConfig, GatedLoraParams, init_gated_lora
from llada_jax.io.atomic import new_folder
from llada_jax.model.families.family import families
from llada_jax.model.finite import require_finite_tree
from llada_jax.model.params import parameter_name

DRAFT_WEIGHTS = "draft.safetensors"
_KEYS = ("n_masks", "draft_vocab_size", "target_fingerprint", "target")
_IDS = "ids"
_HALVES = {"down": "lora_A", "up": "lora_B"}


def read_gated_lora(
    folder: str | PathLike[str], dtype: str | None = None
) -> tuple[GatedLoraConfig, GatedLoraParams]:
    """Reads a drafter, in the stored dtype or another one.

    Raises FileNotFoundError or ValueError, in one sentence, for a missing or damaged file, an
    unsupported adapter, and for tensors that are missing, unknown or of another shape.
    """
    folder = Path(folder)
    settings, draft = adapter_settings(folder), read_object(folder / DRAFT_CONFIG)
    require(
        draft.keys() == {*_KEYS} and isinstance(draft["target"], Mapping),
        f"{folder / DRAFT_CONFIG} has {', '.join(draft)}; allowed: {', '.join(_KEYS)}",
    )
    special = {key: settings[key] for key in ("use_rslora", "rank_pattern", "alpha_pattern")
               if settings.get(key)}  # fmt: skip
    require(not special, f"the adapter {folder} has {special!r:.200}; allowed: plain LoRA")
    shape = config_from_hf(draft["target"])
    ends, named = _module_ends(shape), settings.get("target_modules")
    require(
        isinstance(named, list) and {*named} <= {*ends.values()},
        f"target_modules of {folder} is {named!r:.200}; allowed: {', '.join(ends.values())}",
    )
    config = GatedLoraConfig(
        shape=shape,
        lora=LoraConfig(
            rank=settings.get("r"),
            alpha=settings["lora_alpha"],
            targets=tuple(target for target, end in ends.items() if end in named),
        ),
        n_masks=draft["n_masks"],
        target=draft["target_fingerprint"],
        n_ids=draft["draft_vocab_size"],
    )
    shapes, names = _shapes(config), _tensor_names(config)
    arrays = {}
    for file in (ADAPTER_WEIGHTS, DRAFT_WEIGHTS):
        of_file = {name: shape for (of, name), shape in shapes.items() if of == file}
        kinds = {name: ("I32",) if name == _IDS else tuple(FLOATS) for name in of_file}
        require_tensors(folder / file, tensors_of(folder / file), of_file, kinds)
        arrays |= {(file, name): array for name, array in load_file(folder / file).items()}
    ids = arrays.get((DRAFT_WEIGHTS, _IDS))
    if ids is not None:
        require_ids(f"{_IDS} of {folder}", ids, shape.vocab_size)
        ids = jnp.asarray(ids)
    params = jax.tree.map(lambda place: jnp.asarray(arrays[place], dtype), names, is_leaf=_is_place)
    require_finite_tree(f"in {folder}", params)
    return config, params._replace(ids=ids)


def write_gated_lora(
    folder: str | PathLike[str],
    config: GatedLoraConfig,
    params: GatedLoraParams,
    dtype: str = "bfloat16",
) -> None:
    """Writes a drafter; all files appear together, or none. Raises ValueError if the parameters do
    not fit the configuration."""
    files: dict[str, dict[str, np.ndarray]] = {ADAPTER_WEIGHTS: {}, DRAFT_WEIGHTS: {}}
    shapes, names = _shapes(config), _tensor_names(config)
    places = jax.tree.leaves(names, is_leaf=_is_place)
    leaves = jax.tree.leaves(params._replace(ids=None))
    for (file, name), leaf in zip(places, leaves, strict=True):
        files[file][name] = np.asarray(leaf, dtype)
    if params.ids is not None:
        files[DRAFT_WEIGHTS][_IDS] = np.asarray(params.ids, np.int32)
    for (file, name), shape in shapes.items():
        array = files[file].get(name)
        actual = None if array is None else array.shape
        require(actual == shape, f"{name} is {actual}; allowed: {shape}")
    ends = _module_ends(config.shape)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": config.lora.rank,
        "lora_alpha": config.lora.alpha,
        "target_modules": [ends[target] for target in config.lora.targets],
        "bias": "none",
    }
    draft = (config.n_masks, config.n_ids, config.target, config_to_hf(config.shape))
    with new_folder(Path(folder)) as part:
        for file, tensors in files.items():
            save_file(tensors, part / file, metadata={"format": "pt"})
        (part / ADAPTER_CONFIG).write_text(json.dumps(settings, indent=2) + "\n")
        named = dict(zip(_KEYS, draft, strict=True))
        (part / DRAFT_CONFIG).write_text(json.dumps(named, indent=2) + "\n")


def _is_place(node: Any) -> bool:
    return isinstance(node, tuple) and isinstance(node[0], str)


def _abstract(config: GatedLoraConfig) -> GatedLoraParams:
    """Returns the tree of parameters with a shape at each leaf, apart from `ids`."""
    embedding = jax.ShapeDtypeStruct((1, config.shape.width), jnp.float32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.eval_shape(partial(init_gated_lora, config), embedding, key)


def _tensor_names(config: GatedLoraConfig) -> Any:
    """Returns the tree of parameters with the file and the name of a tensor at each leaf."""
    modules = _modules(config.shape)

    def place(path: tuple[Any, ...], _: Any) -> tuple[str, str]:
        name = parameter_name(path)
        if not name.startswith("adapters."):
            return DRAFT_WEIGHTS, name
        matrix, _, half = name.removeprefix("adapters.").rpartition(".")
        return ADAPTER_WEIGHTS, f"{PREFIX}{modules[matrix]}.{_HALVES[half]}.weight"

    return jax.tree.map_with_path(place, _abstract(config))


def _shapes(config: GatedLoraConfig) -> dict[tuple[str, str], tuple[int, ...]]:
    """Returns the shape of each tensor by its file and name."""
    places = jax.tree.leaves(_tensor_names(config), is_leaf=_is_place)
    leaves = jax.tree.leaves(_abstract(config))
    shapes = {place: leaf.shape for place, leaf in zip(places, leaves, strict=True)}
    return shapes if config.n_ids is None else {**shapes, (DRAFT_WEIGHTS, _IDS): (config.n_ids,)}


def _modules(shape: ModelConfig) -> dict[str, str]:
    """Returns the name of the module that has each matrix of a model, by the matrix."""
    sources = param_sources(shape, families()[shape.family].names)
    return {source.name: source.tensors[0].removesuffix(".weight") for source in sources}


def _module_ends(shape: ModelConfig) -> dict[str, str]:
    """Returns the last part of the modules that LoRA can adapt, by the name of the matrix."""
    ends = {name.rpartition(".")[2]: end for name, end in _modules(shape).items()}
    return {target: ends[target].rpartition(".")[2] for target in LoraConfig.targets}
