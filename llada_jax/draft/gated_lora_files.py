"""Reads and writes the folder of a gated-LoRA drafter.

Its LoRA matrices are an adapter in peft's layout (`adapter_config.json` and
`adapter_model.safetensors`). `draft.safetensors` has the other arrays, and `draft.json` the
target's configuration and fingerprint.
"""

import json
from collections.abc import Mapping
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
from llada_jax.draft.gated_lora import GatedLoraConfig, GatedLoraParams, abstract_gated_lora
from llada_jax.io.atomic import new_folder
from llada_jax.model.families.family import families
from llada_jax.model.finite import require_finite_tree
from llada_jax.model.params import parameter_name

DRAFT_WEIGHTS = "draft.safetensors"
FILES = ADAPTER_WEIGHTS, DRAFT_WEIGHTS
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
    named: Any = settings.get("target_modules")
    require(
        draft.keys() == {*_KEYS} and isinstance(draft["target"], Mapping),
        f"{folder / DRAFT_CONFIG} has {', '.join(draft)}; allowed: {', '.join(_KEYS)}",
    )
    special = {key: settings[key] for key in ("use_rslora", "rank_pattern", "alpha_pattern")
               if settings.get(key)}  # fmt: skip
    require(not special, f"the adapter {folder} has {special!r:.200}; allowed: plain LoRA")
    shape = config_from_hf(draft["target"])
    ends = _module_ends(shape)
    require(
        isinstance(named, list) and {*named} <= {*ends.values()},
        f"target_modules of {folder} is {named!r:.200}; allowed: {', '.join(ends.values())}",
    )
    config = GatedLoraConfig(
        shape=shape,
        lora=LoraConfig(
            rank=settings.get("r", 0),
            alpha=settings["lora_alpha"],
            targets=tuple(target for target, end in ends.items() if end in named),
        ),
        n_masks=draft["n_masks"],
        target=draft["target_fingerprint"],
        n_ids=draft["draft_vocab_size"],
    )
    places, specs = _tensors(config)
    arrays = {}
    for file in FILES:
        expected = {
            name: spec for (of, name), spec in zip(places, specs, strict=True) if of == file
        }
        shapes = {name: spec.shape for name, spec in expected.items()}
        kinds = {name: ("I32",) if name == _IDS else tuple(FLOATS) for name in expected}
        require_tensors(folder / file, tensors_of(folder / file), shapes, kinds)
        arrays |= {(file, name): array for name, array in load_file(folder / file).items()}
    if config.n_ids is not None:
        require_ids(f"{_IDS} of {folder}", arrays[DRAFT_WEIGHTS, _IDS], shape.vocab_size)
    leaves = [jnp.asarray(arrays[place], None if place[1] == _IDS else dtype) for place in places]
    params = jax.tree.unflatten(jax.tree.structure(abstract_gated_lora(config)), leaves)
    require_finite_tree(f"in {folder}", params)
    return config, params


def write_gated_lora(
    folder: str | PathLike[str],
    config: GatedLoraConfig,
    params: GatedLoraParams,
    dtype: str = "bfloat16",
) -> None:
    """Writes a drafter; all files appear together, or none. Raises ValueError if the parameters do
    not fit the configuration."""
    files: dict[str, dict[str, np.ndarray]] = {file: {} for file in FILES}
    given = None if params.ids is None else len(params.ids)
    require(given == config.n_ids, f"n_ids is {config.n_ids}; allowed: {given}, as the parameters")
    for (file, name), spec, leaf in zip(*_tensors(config), jax.tree.leaves(params), strict=True):
        require(leaf.shape == spec.shape, f"{name} is {leaf.shape}; allowed: {spec.shape}")
        files[file][name] = np.asarray(leaf, np.int32 if name == _IDS else dtype)
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
    values = (config.n_masks, config.n_ids, config.target, config_to_hf(config.shape))
    draft = dict(zip(_KEYS, values, strict=True))
    with new_folder(Path(folder)) as part:
        for file, tensors in files.items():
            save_file(tensors, part / file, metadata={"format": "pt"})
        for file, content in ((ADAPTER_CONFIG, settings), (DRAFT_CONFIG, draft)):
            (part / file).write_text(json.dumps(content, indent=2) + "\n")


def _tensors(config: GatedLoraConfig) -> tuple[list[tuple[str, str]], list[jax.ShapeDtypeStruct]]:
    """Returns the file and name of each tensor, and its shape, in the order of the leaves."""
    modules, places, specs = _modules(config.shape), [], []
    for path, spec in jax.tree.leaves_with_path(abstract_gated_lora(config)):
        matrix, _, part = parameter_name(path).rpartition(".")
        place = DRAFT_WEIGHTS, parameter_name(path)
        if part in _HALVES and matrix.startswith("adapters."):
            module = modules[matrix.removeprefix("adapters.")]
            place = ADAPTER_WEIGHTS, f"{PREFIX}{module}.{_HALVES[part]}.weight"
        places.append(place)
        specs.append(spec)
    return places, specs


def _modules(shape: ModelConfig) -> dict[str, str]:
    """Returns the name of the module that has each matrix of a model, by the matrix."""
    sources = param_sources(shape, families()[shape.family].names)
    return {source.name: source.tensors[0].removesuffix(".weight") for source in sources}


def _module_ends(shape: ModelConfig) -> dict[str, str]:
    """Returns the last part of the modules that LoRA can adapt, by the name of the matrix."""
    ends = {name.rpartition(".")[2]: end for name, end in _modules(shape).items()}
    return {target: ends[target].rpartition(".")[2] for target in LoraConfig.targets}
