"""The families of models, as `families.yaml` has them: how each spells what its checkpoints hold.

The code that runs a model does not know families; it reads the `ModelConfig` that an entry gives.
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
"""Parameter path -> checkpoint name; `{i}` is the layer, `{e}` the expert. Parameters that share a
name are row ranges of one tensor, in the order of the tree. `dense:` before a path is for layers
without routed experts, where their names differ."""
GROUP = "llada_jax.families"
"""Entry points by which other distributions add families: a name, and the `Family`."""
_IMAGES = ("vision_", "mm_", "image_", "visual", "audio_", "video_")
"""What keys of multimodal models begin with."""
REQUIRED = ("width", "n_layers", "n_heads", "vocab_size", "ffn_width", "rope_theta")
"""Fields that every checkpoint's configuration must give."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """How the checkpoints of one family are spelled."""

    model_types: Sequence[str]
    """The values of `model_type` that it answers to; the first one is written."""
    architecture: str
    """The class of the reference implementation, as `config.json` names it."""
    also: Sequence[str] = ()
    """Other classes that it answers to."""
    names: Names
    other_names: Names = field(default_factory=dict)
    """The names that converted checkpoints have instead, as read only."""
    keys: Mapping[str, Sequence[str]]
    """Configuration field -> its keys in `config.json`: all are written, the first present is
    read."""
    constants: Mapping[str, Any]
    """Keys of `config.json` that the reference needs, and that never vary."""
    required: Sequence[str] = ()
    """`ModelConfig` fields that its configurations must give, beside `REQUIRED`."""
    presets: Sequence[str] = ()
    """Presets of `SamplerConfig` that decode it, the published one first."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """Variables that the chat template is given."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """`ModelConfig` fields that the architecture fixes."""
    presence: Mapping[str, str] = field(default_factory=dict)
    """`ModelConfig` flags that are set where the checkpoint has this tensor, if its configuration
    does not say."""
    moe_facts: Mapping[str, Any] | None = None
    """`MoEConfig` fields that the architecture fixes; None for dense families."""
    gguf_architecture: str | None = None
    gguf_permuted: bool = False
    """llama.cpp's converter interleaved the rows of q and k for its own RoPE."""
    mask_id: int | None = None
    """[MASK] of the released checkpoints, where their configuration does not name it."""


def table() -> Mapping[str, Any]:
    """Reads `families.yaml`."""
    return read_yaml(Path(__file__).with_name("families.yaml"))


@cache
def families() -> dict[str, Family]:
    """Returns each family by its name: those of the table, and the entry points of `GROUP`."""
    known = {name: Family(**entry) for name, entry in table()["families"].items()}
    for point in entry_points(group=GROUP):
        _add(known, point.name, point.load())
    return known


def add_family(family: Family | str) -> str:
    """Makes a family known by its first `model_type` for the rest of the session, and returns that
    name; a name returns as it is.

    Raises ValueError where that is no family, or another one answers to one of its types.
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
    for other, each in known.items():
        taken = sorted({*each.model_types} & {*family.model_types})
        require(
            each == family or not (taken or other == name),
            f"family {name!r} answers to {taken}, as {other!r} does; allowed: types of its own",
        )
    if family not in known.values():
        known[name] = family


def family_of(hf: Mapping[str, Any]) -> str:
    """Returns the family of a `config.json`, by its `model_type`, `architectures` and keys.

    Raises ValueError that names the known ones, or says which model it is and why that one is not
    supported.
    """
    kind, named = hf.get("model_type"), hf.get("architectures") or [None]
    require(isinstance(named, list), f"architectures is {named!r}; allowed: a list of names")
    require_supported(hf)
    architecture = named[0]
    of_type = {name: each for name, each in families().items() if kind in each.model_types}
    known = dict.fromkeys(kind for family in families().values() for kind in family.model_types)
    require(len(of_type) > 0, f"model_type is {kind!r}; allowed: {', '.join(map(repr, known))}")
    classes = {name: (each.architecture, *each.also) for name, each in of_type.items()}
    fits = [name for name in of_type if architecture is None or architecture in classes[name]]
    if len(fits) > 1:
        routed = bool(hf.get("num_experts"))
        fits = [name for name in fits if (of_type[name].moe_facts is not None) == routed]
    allowed = ", ".join(repr(each) for names in classes.values() for each in names)
    require(len(fits) == 1, f"architectures is {architecture!r} for {kind!r}; allowed: {allowed}")
    return fits[0]


def require_supported(hf: Mapping[str, Any]) -> None:
    """Raises ValueError for a model that is known and not supported, and says why."""
    architectures = hf.get("architectures") or [None]
    strings = {**hf, "architectures": architectures[0]}
    for name, entry in table()["look_alikes"].items():
        if all(_is(strings.get(key), wanted) for key, wanted in entry["when"].items()):
            _refuse(name, f"{entry['why']} (family=... if it is one of these after all)")
    classes = hf.get("auto_map") if isinstance(hf.get("auto_map"), Mapping) else {}
    own = [hf.get("model_type"), *architectures, *dict(classes or {}).values()]
    plain = [re.sub(r"[^a-z0-9]", "", str(each).lower()) for each in own]
    for name, entry in table()["other_models"].items():
        if any(part in each for part in entry["named"] for each in plain):
            _refuse(name, entry["why"])
    images = [key for key, value in hf.items() if value and any(map(key.startswith, _IMAGES))]
    if images:
        _refuse("a multimodal model", f"{images[0]} describes an encoder that is not read")


def _is(value: object, wanted: object) -> bool:
    """Tells whether a key's value is one of those wanted; `any` is whatever is not off."""
    return bool(value) if wanted == "any" else value in wanted  # pyright: ignore


def _refuse(name: str, why: str) -> NoReturn:
    raise ValueError(
        f"this is {name}, which is not supported because {why}; allowed families: "
        f"{', '.join(families())}"
    )


def checkpoint_name(names: Names, path: str, *, routed: bool) -> str:
    """Returns the template of a parameter's name; `path` has `{i}` for the layer's number."""
    kind = f"{'routed' if routed else 'dense'}:{path}"
    return names[kind] if kind in names else names[path]


def number(key: str, value: Any) -> Any:
    """Returns a value that is a number, and finite. Raises ValueError for another."""
    finite = isinstance(value, int | float) and abs(value) < 2**63
    require(finite, f"{key} is {value!r}; allowed: a number")
    return value


def head_size(found: Mapping[str, Any]) -> int:
    """Returns the size of a head where nothing says it. Raises ValueError for a model of none."""
    heads = found["n_heads"]
    require(heads >= 1, f"n_heads is {heads!r}; allowed: 1 or more")
    return found["width"] // heads


def completed(name: str, found: Mapping[str, Any]) -> ModelConfig:
    """Returns the configuration of a family's model, with what its checkpoint leaves open."""
    mask_id = families()[name].mask_id
    defaults = {
        "n_kv_heads": found["n_heads"],
        "head_dim": head_size(found),
        "norm_eps": 1e-6,
        "max_length": 4096,
        "mask_id": None if mask_id is None or mask_id >= found["vocab_size"] else mask_id,
    }
    return ModelConfig(family=name, **{**defaults, **found})
