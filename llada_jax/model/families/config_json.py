"""Configurations of Hugging Face folders: `config.json`, read and written as a family spells it."""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from llada_jax.config import ModelConfig, MoEConfig, require
from llada_jax.model.families.family import (
    REQUIRED,
    Family,
    completed,
    families,
    family_of,
    head_size,
    number,
    table,
)

_REQUIRED_MOE = ("n_experts", "experts_per_token", "expert_width")


def config_from_hf(hf: Mapping[str, Any], tensors: Collection[str] | None = None) -> ModelConfig:
    """Returns the configuration that a `config.json` gives, in either spelling of its keys.

    `tensors` are the names of the checkpoint's tensors: they decide what the configuration leaves
    open. Raises ValueError for an unknown family, a missing key, a value that is no number, or a
    feature that is not supported (ALiBi, RoPE scaling, an activation other than SiLU, a norm other
    than RMSNorm).
    """
    require("model_type" in hf, "the model's configuration lacks 'model_type'")
    name = family_of(hf["model_type"])
    family = families()[name]
    hf = {**hf, **_rope_parameters(hf)}
    _reject_unsupported(hf)
    found = {**family.facts, **_read(hf, family, ModelConfig)}
    _require_fields(found, REQUIRED, family)
    for flag, tensor in family.presence.items():
        found.setdefault(flag, tensors is None or tensor in tensors)
    head_dim = found.get("head_dim", head_size(found))
    rotated = hf.get("partial_rotary_factor", 1.0)
    require(
        isinstance(rotated, int | float) and 0 < rotated <= 1,
        f"partial_rotary_factor is {rotated!r}; allowed: above 0, up to 1",
    )
    found["rotary_dims"] = round(head_dim * rotated)
    if family.moe_facts is not None:
        moe = {**family.moe_facts, **_read(hf, family, MoEConfig)}
        _require_fields(moe, _REQUIRED_MOE, family)
        if hf.get("num_shared_experts"):
            moe["shared_width"] = _number(hf, "num_shared_experts") * moe["expert_width"]
        found["moe"] = MoEConfig(**moe)
    return completed(name, found)


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
    """Returns the `config.json` of a model as its family spells it; `config_from_hf` inverts it.

    Raises ValueError, with the fields, where the family has no key for what `config` says.
    """
    family = families()[config.family]
    hf: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.model_types[0],
        **family.constants,
    }
    for ours, keys in family.keys.items():
        value = getattr(config if hasattr(config, ours) else config.moe, ours, None)
        hf.update((key, _spell(key, value, config)) for key in keys if value is not None)
    if config.rotary_dims != config.head_dim:
        hf["partial_rotary_factor"] = config.rotary_dims / config.head_dim
    back = config_from_hf(hf)
    lost = [f.name for f in fields(config) if getattr(back, f.name) != getattr(config, f.name)]
    require(not lost, f"{lost} of the configuration have no key in family {config.family!r}")
    return hf


def _spell(key: str, value: Any, config: ModelConfig) -> Any:
    if key == "moe_layer_freq":
        return [int(index >= value) for index in range(config.n_layers)]
    if key == "num_shared_experts" and config.moe is not None:
        return value // config.moe.expert_width
    return value


def _require_fields(found: Mapping[str, Any], names: tuple[str, ...], family: Family) -> None:
    for name in names:
        keys = " or ".join(map(repr, _spellings(name, family)))
        require(name in found, f"the model's configuration lacks {keys}")


def _spellings(name: str, family: Family) -> list[str]:
    """Returns the keys of a field: the family's own, then those of the other families."""
    rows = (family, *families().values())
    return list(dict.fromkeys(key for row in rows for key in row.keys.get(name, ())))


def _read(hf: Mapping[str, Any], family: Family, record: type) -> dict[str, Any]:
    found = {}
    for field in fields(record):
        key = next((k for k in _spellings(field.name, family) if hf.get(k) is not None), None)
        if key is not None:
            found[field.name] = _flag(hf, key) if field.type is bool else _number(hf, key)
    return found


def _flag(hf: Mapping[str, Any], key: str) -> bool:
    require(type(hf[key]) is bool, f"{key} is {hf[key]!r}; allowed: true or false")
    return hf[key]


def _number(hf: Mapping[str, Any], key: str) -> Any:
    value = hf[key]
    if key == "moe_layer_freq" and isinstance(value, list):
        first = value.count(0)
        require(
            all(not entry for entry in value[:first]) and all(value[first:]),
            f"{key} is {value}; allowed: zeros, then ones",
        )
        return first
    return number(key, value)


def _rope_parameters(hf: Mapping[str, Any]) -> dict[str, Any]:
    """Returns RoPE's keys from where transformers 5 writes them: a table of their own."""
    rope = hf.get("rope_parameters") or {}
    kind = rope.get("rope_type", "default")
    require(kind == "default", f"rope_type is {kind!r}; allowed: 'default'")
    return {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in rope}


def _reject_unsupported(hf: Mapping[str, Any]) -> None:
    for key, allowed in table()["computed"].items():
        value = hf.get(key)
        require(value in (allowed, None), f"{key} is {value!r}; allowed: {allowed!r}")
