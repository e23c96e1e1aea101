"""The families of models: the names that each uses for tensors and configuration keys.

`families.yaml` has one entry per family, and other packages can add families by entry points.
Families matter only when a checkpoint is read or written. The code that runs a model reads its
`ModelConfig` and does not know the family. `family_of` finds the family of a `config.json`, and
refuses known models that look similar but compute something else.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

from llada_jax.config import ModelConfig, require
from llada_jax.config_files import read_yaml

Names = Mapping[str, str]
"""Parameter path -> tensor name in the checkpoint; `{i}` is the layer, `{e}` the expert. Parameters
with the same name are consecutive rows of one tensor, in the order of the tree. If layers with and
without routed experts have different names, `routed:` or `dense:` precedes the path."""
GROUP = "llada_jax.families"
"""Group of entry points by which other distributions add families; each loads a `Family`."""
_IMAGES = ("vision_", "mm_", "image_", "visual", "audio_", "video_")
"""Beginnings of configuration keys that only multimodal models have."""
REQUIRED = ("width", "n_layers", "n_heads", "vocab_size", "ffn_width", "rope_theta")
"""`ModelConfig` fields that the configuration of every checkpoint must contain."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Names, keys and constants of one family's checkpoints."""

    model_types: Sequence[str]
    """Values of `model_type` in its configurations; the first one is written."""
    architecture: str
    """Class of the reference implementation, in `architectures` of `config.json`."""
    also: Sequence[str] = ()
    """Other classes that belong to the family."""
    names: Names
    other_names: Names = field(default_factory=dict)
    """Alternative names in converted checkpoints, which are read but not written."""
    keys: Mapping[str, Sequence[str]]
    """Configuration field -> its keys in `config.json`. All are written; the first one that is
    present is read."""
    constants: Mapping[str, Any]
    """Keys of `config.json` that the reference needs, with their only values."""
    required: Sequence[str] = ()
    """`ModelConfig` fields that its configurations must contain, in addition to `REQUIRED`."""
    presets: Sequence[str] = ()
    """Presets of `SamplerConfig` that can decode it, the published one first."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the chat template."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """`ModelConfig` fields that the architecture fixes."""
    presence: Mapping[str, str] = field(default_factory=dict)
    """`ModelConfig` flag -> a tensor. If the configuration lacks the flag, it is set if and only if
    the checkpoint has the tensor."""
    moe_facts: Mapping[str, Any] | None = None
    """`MoEConfig` fields that the architecture fixes; None for dense families."""
    gguf_architecture: str | None = None
    gguf_permuted: bool = False
    """Whether llama.cpp's converter interleaves the rows of q and k, for its form of RoPE."""
    mask_id: int | None = None
    """[MASK] of the released checkpoints, where their configuration does not name it."""


@cache
def table() -> Mapping[str, Any]:
    """Reads `families.yaml`."""
    return read_yaml(Path(__file__).with_name("families.yaml"))


@cache
def families() -> dict[str, Family]:
    """Returns all families by name: those in the table and in the entry points of `GROUP`."""
    known = {name: Family(**entry) for name, entry in table()["families"].items()}
    for point in entry_points(group=GROUP):
        _add(known, point.name, point.load())
    return known


def add_family(family: Family | str) -> str:
    """Registers a family for the rest of the process, and returns its name: the first `model_type`.

    The name of a known family is returned unchanged. Raises ValueError for an unknown name, and if
    another family has one of the types.
    """
    if isinstance(family, str):
        require(family in families(), f"family is {family!r}; allowed: {', '.join(families())}")
        return family
    name = family.model_types[0] if isinstance(family, Family) else ""
    _add(families(), name, family)
    return name


def _add(known: dict[str, Family], name: str, family: object) -> None:
    if not isinstance(family, Family):
        raise ValueError(f"family is {family!r}; allowed: a Family")
    for other, known_family in known.items():
        taken = sorted({*known_family.model_types} & {*family.model_types})
        require(
            known_family == family or not (taken or other == name),
            f"family {name!r} answers to {taken}, as {other!r} does; allowed: types of its own",
        )
    if family not in known.values():
        known[name] = family


def family_of(hf: Mapping[str, Any]) -> str:
    """Returns the family of a `config.json`, by its `model_type`, `architectures` and keys.

    Raises ValueError for an unknown model, with the known families, and for a known model that is
    not supported, with the reason.
    """
    kind, named = hf.get("model_type"), hf.get("architectures") or [None]
    require(isinstance(named, list), f"architectures is {named!r}; allowed: a list of names")
    _require_supported(hf)
    architecture = named[0]
    of_type = {name: f for name, f in families().items() if kind in f.model_types}
    known = dict.fromkeys(kind for family in families().values() for kind in family.model_types)
    require(len(of_type) > 0, f"model_type is {kind!r}; allowed: {', '.join(map(repr, known))}")
    classes = {name: (f.architecture, *f.also) for name, f in of_type.items()}
    fits = [name for name in of_type if architecture is None or architecture in classes[name]]
    if len(fits) > 1:
        routed = bool(hf.get("num_experts"))
        fits = [name for name in fits if (of_type[name].moe_facts is not None) == routed]
    allowed = ", ".join(repr(class_name) for names in classes.values() for class_name in names)
    require(len(fits) == 1, f"architectures is {architecture!r} for {kind!r}; allowed: {allowed}")
    return fits[0]


def _require_supported(hf: Mapping[str, Any]) -> None:
    """Raises ValueError with the reason for a model that is known not to be supported."""
    architectures = hf.get("architectures") or [None]
    strings = {**hf, "architectures": architectures[0]}
    for name, entry in table()["look_alikes"].items():
        if all(_is(strings.get(key), wanted) for key, wanted in entry["when"].items()):
            _refuse(name, f"{entry['why']} (family=... if it is one of these after all)")
    classes = hf.get("auto_map") if isinstance(hf.get("auto_map"), Mapping) else {}
    names = [hf.get("model_type"), *architectures, *dict(classes or {}).values()]
    plain = [re.sub(r"[^a-z0-9]", "", str(name).lower()) for name in names]
    for name, entry in table()["other_models"].items():
        if any(part in plain_name for part in entry["named"] for plain_name in plain):
            _refuse(name, entry["why"])
    images = [key for key, value in hf.items() if value and any(map(key.startswith, _IMAGES))]
    if images:
        _refuse("a multimodal model", f"{images[0]} describes an encoder that is not read")


def _is(value: object, wanted: object) -> bool:
    """Returns whether a value is in the list `wanted`, or truthy if that is `any`."""
    return bool(value) if wanted == "any" else value in wanted  # pyright: ignore


def _refuse(name: str, why: str) -> NoReturn:
    raise ValueError(
        f"this is {name}, which is not supported because {why}; allowed families: "
        f"{', '.join(families())}"
    )


def checkpoint_name(names: Names, path: str, *, routed: bool) -> str:
    """Returns the template of a parameter's tensor name; `path` has `{i}` in place of the layer."""
    kind = f"{'routed' if routed else 'dense'}:{path}"
    return names[kind] if kind in names else names[path]


def number(key: str, value: Any) -> Any:
    """Returns the value. Raises ValueError if it is not a finite number."""
    finite = isinstance(value, int | float) and abs(value) < 2**63
    require(finite, f"{key} is {value!r}; allowed: a number")
    return value


def head_size(fields: Mapping[str, Any]) -> int:
    """Returns the default head size, width / heads. Raises ValueError if `n_heads` is below 1."""
    heads = fields["n_heads"]
    require(heads >= 1, f"n_heads is {heads!r}; allowed: 1 or more")
    return fields["width"] // heads


def completed(name: str, fields: Mapping[str, Any]) -> ModelConfig:
    """Builds a configuration from a checkpoint's fields and defaults for missing ones."""
    mask_id = families()[name].mask_id
    defaults = {
        "n_kv_heads": fields["n_heads"],
        "head_dim": head_size(fields),
        "norm_eps": 1e-6,
        "max_length": 4096,
        "mask_id": None if mask_id is None or mask_id >= fields["vocab_size"] else mask_id,
    }
    return ModelConfig(family=name, **{**defaults, **fields})
