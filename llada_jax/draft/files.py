"""Reads and writes the folder of a DFlash drafter: `config.json` and `model.safetensors`.

The names are as in released drafters: the layers' as in a Qwen3 checkpoint without `model.`, and
`fc`, `hidden_norm` and `norm`. Embedding and head are the target's and are not in the folder. Three
optional parts are not in released drafters: the target's fingerprint; a reduced draft vocabulary,
stored as EAGLE-3 does (`d2t`: the id of draft row i is i + d2t[i]); and matrices in 8 bits, with a
scale for each row in the tensor `<name>_scale`.
"""

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file

from llada_jax.checkpoint.config_json import config_from_hf, config_to_hf
from llada_jax.checkpoint.huggingface import CONFIG_FILE, SINGLE_FILE, tensors_of
from llada_jax.checkpoint.sources import FLOATS, StoredTensor, listed, param_sources
from llada_jax.config import ModelConfig, require
from llada_jax.config.checks import read_object
from llada_jax.draft.network import DFlashConfig, DFlashParams, default_taps, drafter_specs
from llada_jax.io.atomic import new_folder
from llada_jax.model.families.family import families
from llada_jax.model.finite import require_finite_tree
from llada_jax.model.params import parameter_name
from llada_jax.model.quantize import QuantArray, dequantize, quantize

ARCHITECTURE = "DFlashDraftModel"
_FAMILY = "qwen3"
_D2T, _SCALE = "d2t", "_scale"
_KEYS = ("block_size", "dflash_config", "num_target_layers", "draft_vocab_size", "auto_map")
_DFLASH_KEYS = ("block_size", "mask_token_id", "target_layer_ids", "target_fingerprint")


def drafter_from_hf(hf: Mapping[str, Any]) -> DFlashConfig:
    """Returns the configuration of a drafter from its `config.json`.

    Raises ValueError for another architecture, for sliding windows and unknown keys, which would
    change the computation, and for two different block sizes.
    """
    named = hf.get("architectures")
    require(
        named == [ARCHITECTURE],
        f"architectures is {named!r}; allowed for a drafter: [{ARCHITECTURE!r}]",
    )
    inner = hf.get("dflash_config")
    inner = {} if inner is None else inner
    require(isinstance(inner, Mapping), f"dflash_config is {inner!r:.80}; allowed: an object")
    unknown = {key: value for key, value in inner.items() if key not in _DFLASH_KEYS and value}
    require(not unknown, f"dflash_config has {unknown!r:.200}; allowed: {', '.join(_DFLASH_KEYS)}")
    sizes = {part["block_size"] for part in (hf, inner) if part.get("block_size") is not None}
    require(
        len(sizes) == 1,
        f"block_size is {sorted(sizes, key=str)} in config.json and its dflash_config; allowed: "
        "one number, in either or both",
    )
    require("num_target_layers" in hf, "the drafter's configuration lacks 'num_target_layers'")
    require("mask_token_id" in inner, "dflash_config lacks 'mask_token_id'")
    shape = config_from_hf({key: hf[key] for key in hf if key not in _KEYS}, family_name=_FAMILY)
    layers, taps = hf["num_target_layers"], inner.get("target_layer_ids")
    if taps is None:
        taps = default_taps(layers, shape.n_layers)
    return DFlashConfig(
        shape=shape,
        taps=tuple(taps),
        block_length=sizes.pop(),
        mask_id=inner["mask_token_id"],
        target_layers=layers,
        target=inner.get("target_fingerprint"),
        n_ids=hf.get("draft_vocab_size"),
    )


def drafter_to_hf(config: DFlashConfig) -> dict[str, Any]:
    """Returns the `config.json` of a drafter; `drafter_from_hf` inverts this."""
    inner = {
        "mask_token_id": config.mask_id,
        "target_layer_ids": list(config.taps),
        "target_fingerprint": config.target,
    }
    hf = {
        **config_to_hf(config.shape),
        "architectures": [ARCHITECTURE],
        "block_size": config.block_length,
        "num_target_layers": config.target_layers,
        "draft_vocab_size": config.n_ids,
        "dflash_config": {key: value for key, value in inner.items() if value is not None},
    }
    return {key: value for key, value in hf.items() if value is not None}


def read_drafter(
    folder: str | PathLike[str], dtype: str | None = None
) -> tuple[DFlashConfig, DFlashParams]:
    """Reads a drafter. Without `dtype` ("float32", "bfloat16"), arrays stay as in the file, also
    matrices in 8 bits.

    Raises FileNotFoundError or ValueError, in one sentence, for a missing or damaged file, an
    unsupported configuration, and for tensors that are missing, unknown or of another shape.
    """
    folder = Path(folder)
    config = drafter_from_hf(read_object(folder / CONFIG_FILE))
    stored = tensors_of(folder / SINGLE_FILE)
    names = _tensor_names(config)
    specs = drafter_specs(config)
    shapes = dict(
        zip(jax.tree.leaves(names), (s.shape for s in jax.tree.leaves(specs)), strict=True)
    )
    kinds = dict.fromkeys(shapes, tuple(FLOATS))
    in_8_bits = [name for name in shapes if name in stored and stored[name].kind == "I8"]
    for name in in_8_bits:
        kinds[name], shapes[name + _SCALE] = ("I8",), (*shapes[name][:-1], 1)
        kinds[name + _SCALE] = ("F32",)
    if config.n_ids is not None:
        shapes[_D2T], kinds[_D2T] = (config.n_ids,), ("I64",)
    require_tensors(folder / SINGLE_FILE, stored, shapes, kinds)
    tensors = load_file(folder / SINGLE_FILE)
    ids = None
    if config.n_ids is not None:
        ids = tensors[_D2T] + np.arange(config.n_ids)
        require_ids(f"{_D2T} of {folder}", ids, config.vocab_size)
        ids = jnp.asarray(ids, jnp.int32)

    def weight(name: str) -> Any:
        if name not in in_8_bits:
            return jnp.asarray(tensors[name], dtype)
        packed = QuantArray(jnp.asarray(tensors[name]), jnp.asarray(tensors[name + _SCALE]))
        return packed if dtype is None else dequantize(packed, dtype)

    params = jax.tree.map(weight, names)
    require_finite_tree(f"in {folder}", params)
    return config, params._replace(ids=ids)


def write_drafter(
    folder: str | PathLike[str],
    config: DFlashConfig,
    params: DFlashParams,
    dtype: str = "bfloat16",
) -> None:
    """Writes a drafter in the layout of released ones; both files appear together, or none. With
    the dtype "int8" matrices have 8 bits, and norms are float32.

    Raises ValueError if the parameters do not fit the configuration.
    """
    given = None if params.ids is None else len(params.ids)
    require(given == config.n_ids, f"n_ids is {config.n_ids}; allowed: {given}, as the parameters")
    names, floats = _tensor_names(config), params._replace(ids=None)
    specs = drafter_specs(config)
    tensors = {}
    for name, spec, leaf in zip(*map(jax.tree.leaves, (names, specs, floats)), strict=True):
        require(
            leaf.shape == spec.shape,
            f"{name} is {list(leaf.shape)}; allowed: {list(spec.shape)}",
        )
        if dtype != "int8":
            tensors[name] = np.asarray(leaf, dtype)
        elif leaf.ndim == 1:
            tensors[name] = np.asarray(leaf, np.float32)
        else:
            packed = quantize(np.asarray(leaf, np.float32), 8)
            tensors[name], tensors[name + _SCALE] = map(np.asarray, packed)
    if params.ids is not None:
        ids = np.asarray(params.ids, np.int64)
        tensors[_D2T] = ids - np.arange(len(ids))
    with new_folder(Path(folder)) as part:
        save_file(tensors, part / SINGLE_FILE, metadata={"format": "pt"})
        text = json.dumps({**drafter_to_hf(config), "torch_dtype": dtype}, indent=2, sort_keys=True)
        (part / CONFIG_FILE).write_text(text + "\n")


def require_tensors(
    file: Path,
    stored: Mapping[str, StoredTensor],
    shapes: Mapping[str, tuple[int, ...]],
    kinds: Mapping[str, Sequence[str]],
) -> None:
    """Raises ValueError unless a file has exactly the tensors with these shapes and kinds."""
    for wrong, verb in ((shapes.keys() - stored, "lacks"), (stored.keys() - shapes, "also has")):
        require(not wrong, f"{file} {verb} {listed(sorted(wrong))}")
    for name, shape in shapes.items():
        kind = stored[name].kind
        require(
            stored[name].shape == shape and kind in kinds[name],
            f"{name} of {file.parent} is {kind} {list(stored[name].shape)}; allowed: "
            f"{' or '.join(kinds[name])} {list(shape)}",
        )


def require_ids(name: str, ids: np.ndarray, vocab_size: int) -> None:
    """Raises ValueError unless the ids of a draft vocabulary are different ids of the target's."""
    valid = (ids >= 0) & (ids < vocab_size)
    require(
        bool(valid.all()) and len(np.unique(ids)) == len(ids),
        f"{name} names an id twice or outside of the vocabulary; allowed: different ids below "
        f"{vocab_size}",
    )


def require_target(config: Any, target: ModelConfig, fingerprint: str | None) -> None:
    """Raises ValueError if a drafter does not belong to a target: the target is not autoregressive,
    has another shape or vocabulary, or another fingerprint than the one that the drafter names."""
    require(
        target.autoregressive,
        "a drafter is given for a model that is not autoregressive; allowed: an autoregressive one",
    )
    for name, needed in {**config.target_facts, "fingerprint": config.target}.items():
        actual = fingerprint if name == "fingerprint" else getattr(target, name)
        require(
            needed in (None, actual),
            f"{name} of the model is {actual!r}; allowed: {needed!r}, as of the drafter's target",
        )


def _tensor_names(config: DFlashConfig) -> DFlashParams:
    """Returns the tree with the name of a tensor at each leaf."""
    sources = param_sources(config.shape, families()[_FAMILY].names)
    of = {source.name: source.tensors[0].removeprefix("model.") for source in sources}
    specs: Any = drafter_specs(config)
    body: Any = jax.tree.map_with_path(
        lambda path, _: of["layers." + parameter_name(path)], specs.layers
    )
    return DFlashParams("fc.weight", "hidden_norm.weight", body, of["final_norm"])  # pyright: ignore
