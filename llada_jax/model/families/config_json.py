"""Configurations of Hugging Face folders: `config.json`, read and written as a family spells it."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from fnmatch import fnmatchcase
from functools import partial
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

_READ_ELSEWHERE = ("layer_types", "num_shared_experts", "partial_rotary_factor", "rope_parameters",
                   "rotary_dim")  # fmt: skip
_YARN = {"rope_type": "yarn", "beta_fast": 32, "beta_slow": 1, "mscale": 1, "mscale_all_dim": 1,
         "llama_4_scaling_beta": 0.1}  # fmt: skip
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1, "high_freq_factor": 4}
_SCALED = {"yarn": _YARN, "llama3": _LLAMA3}
_SCALED_BY = ("factor", "original_max_position_embeddings")
_REQUIRED_MOE = ("n_experts", "experts_per_token", "expert_width")


def config_from_hf(
    hf: Mapping[str, Any],
    tensors: Collection[str] | None = None,
    family_name: str | None = None,
    generation: Mapping[str, Any] | None = None,
    ignore_keys: Collection[str] = (),
) -> ModelConfig:
    """Returns the configuration that a `config.json` gives, in either spelling of its keys.

    Args:
      tensors: the names of the checkpoint's tensors: they decide what the configuration leaves
        open.
      family_name: the family, where the caller knows it better than the configuration says.
      generation: what `generation_config.json` says; of it, the ids that end an answer.
      ignore_keys: unknown keys that are left out.

    Keys are understood (`families.yaml`: keys of the family, `computed`), inert (`inert`, and any
    whose value is null, false, 0 or empty), or unknown.

    Raises ValueError for an unknown family and for a look-alike, a missing key, a value that is no
    number, a feature that is not supported (ALiBi, RoPE scaling, an activation other than SiLU, a
    norm other than RMSNorm), a key that is unknown, and one to be ignored that is understood.
    """
    require("model_type" in hf, "the model's configuration lacks 'model_type'")
    quantized = hf.get("quantization_config") or hf.get("compression_config")
    method = quantized.get("quant_method") if isinstance(quantized, Mapping) else quantized
    require(
        not quantized,
        f"quantization_config is of {method!r}: integers or fp8 with scales of their own; allowed: "
        "float32, float16 or bfloat16, or a .gguf file",
    )
    name = family_of(hf) if family_name is None else family_name
    family = families()[name]
    hf, scaling = _with_rope(hf)
    _reject_unsupported(hf, family, ignore_keys)
    ends = [id_ for each in (hf, generation or {}) for id_ in _listed(each.get("eos_token_id"))]
    require(
        all(isinstance(id_, int) for id_ in ends), f"eos_token_id is {ends}; allowed: whole numbers"
    )
    hf["eos_token_id"], *stops = list(dict.fromkeys(ends)) or [None]
    found = {**family.facts, **_read(hf, family, ModelConfig), **scaling}
    found["stop_ids"] = tuple(stops)
    _require_fields(found, (*REQUIRED, *family.required), family)
    for flag, tensor in family.presence.items():
        found.setdefault(flag, tensors is None or tensor in tensors)
    found["rotary_dims"] = _rotary_dims(hf, found)
    if family.moe_facts is not None:
        moe = {**family.moe_facts, **_read(hf, family, MoEConfig)}
        _require_fields(moe, _REQUIRED_MOE, family)
        if hf.get("num_shared_experts"):
            moe["shared_width"] = (
                _plain("num_shared_experts", hf["num_shared_experts"]) * moe["expert_width"]
            )
        found["moe"] = MoEConfig(**moe)
    return completed(name, found)


def _listed(ids: Any) -> list[Any]:
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def _rotary_dims(hf: Mapping[str, Any], found: Mapping[str, Any]) -> int:
    rotated = hf.get("partial_rotary_factor", 1.0)
    require(
        isinstance(rotated, int | float) and 0 < rotated <= 1,
        f"partial_rotary_factor is {rotated!r}; allowed: above 0, up to 1",
    )
    dims = round(found.get("head_dim", head_size(found)) * rotated)
    named = hf.get("rotary_dim")
    require(named in (None, dims), f"rotary_dim is {named!r}; allowed: {dims}, as the rest says")
    return dims


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
    """Returns the `config.json` of a model as its family spells it; `config_from_hf` inverts it,
    but for `stop_ids`, which are `generation_config.json`'s.

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
    if config.rope_scaling is not None:
        numbers = zip(_SCALED_BY, (config.rope_factor, config.rope_length), strict=True)
        scaling = {**_SCALED[config.rope_scaling], **dict(numbers)}
        if config.rope_scaling == "yarn":  # a table of transformers 5 alone
            hf["rope_parameters"] = {**scaling, "rope_theta": hf.pop("rope_theta")}
        else:
            hf["rope_scaling"] = scaling
    if config.rotary_dims != config.head_dim:
        hf["partial_rotary_factor"] = config.rotary_dims / config.head_dim
    back = config_from_hf(hf, family_name=config.family).replace(stop_ids=config.stop_ids)
    lost = [f.name for f in fields(config) if getattr(back, f.name) != getattr(config, f.name)]
    require(not lost, f"{lost} of the configuration have no key in family {config.family!r}")
    return hf


def _spell(key: str, value: Any, config: ModelConfig) -> Any:
    if key == "moe_layer_freq":
        return [int(index >= value) for index in range(config.n_layers)]
    if key == "num_shared_experts" and config.moe is not None:
        return value // config.moe.expert_width
    return value


def _require_fields(found: Mapping[str, Any], names: Iterable[str], family: Family) -> None:
    for name in names:
        keys = " or ".join(map(repr, _spellings(name, family)))
        require(name in found, f"the model's configuration lacks {keys}")


def _spellings(name: str, family: Family) -> list[str]:
    """Returns the keys of a field: the family's own, then those of the other families."""
    rows = (family, *families().values())
    return list(dict.fromkeys(key for row in rows for key in row.keys.get(name, ())))


def _own_keys(family: Family) -> set[str]:
    return {key for keys in family.keys.values() for key in keys}


def _read(hf: Mapping[str, Any], family: Family, record: type) -> dict[str, Any]:
    fixed = {*table()["computed"], *family.constants} - _own_keys(family)
    given = {key for key, value in hf.items() if value is not None} - fixed
    found = {}
    for field in fields(record):
        if keys := [key for key in _spellings(field.name, family) if key in given]:
            found[field.name] = _plain(keys[0], hf[keys[0]], field.type)
    return found


def _plain(key: str, value: Any, kind: Any = int) -> Any:
    if kind is bool:
        require(type(value) is bool, f"{key} is {value!r}; allowed: true or false")
        return value
    if key == "moe_layer_freq" and isinstance(value, list):
        first = value.count(0)
        require(
            all(not entry for entry in value[:first]) and all(value[first:]),
            f"{key} is {value}; allowed: zeros, then ones",
        )
        return first
    return number(key, value)


def _with_rope(hf: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the keys with RoPE's where transformers 4 writes them, out of the table of their own
    that 5 writes; and the fields of a scaled RoPE, which stands in either's."""
    rope, key = hf.get("rope_parameters") or {}, "rope_parameters"
    require(isinstance(rope, Mapping), f"rope_parameters is {rope!r}; allowed: an object")
    read = {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    if not rope and isinstance(hf.get("rope_scaling"), Mapping):
        rope, key = hf["rope_scaling"], "rope_scaling"
    kind = rope.get("rope_type", rope.get("type", "default"))
    plain = {**hf, key: None, **read}
    if kind == "default":
        return plain, {}
    require(kind in [*_SCALED], f"rope_type is {kind!r}; allowed: 'default', 'yarn', 'llama3'")
    for name, allowed in _SCALED[kind].items():
        value = kind if name == "rope_type" else rope.get(name)
        require(value == allowed, f"{name} of {kind} is {value!r}; allowed: {allowed!r}")
    factor, trained = (number(name, rope.get(name)) for name in _SCALED_BY)
    if kind == "yarn":
        # Behind what RoPE was trained for, queries would grow with their position, which nothing
        # here computes: that is the longest canvas.
        longest = number("max_position_embeddings", hf.get("max_position_embeddings", trained))
        plain["max_position_embeddings"] = min(longest, trained)
    return plain, {"rope_scaling": kind, "rope_factor": factor, "rope_length": trained}


def _reject_unsupported(
    hf: Mapping[str, Any], family: Family, ignore_keys: Collection[str]
) -> None:
    """Raises ValueError for what the forward does not compute, and for keys that may decide it
    without anybody here knowing how."""
    own, inert = _own_keys(family), partial(_matches, table()["inert"])
    fixed = {**table()["computed"], **family.constants}
    for key, allowed in fixed.items():
        value, free = hf.get(key), inert(key) and key not in (*table()["computed"], "is_causal")
        require(
            free or key in own or value in (allowed, None),
            f"{key} is {value!r}; allowed: {allowed!r}",
        )
    layers = hf.get("layer_types") or []
    require(
        isinstance(layers, list) and all(each == "full_attention" for each in layers),
        f"layer_types is {layers}; allowed: 'full_attention' alone",
    )
    records = (ModelConfig, MoEConfig) if family.moe_facts is not None else (ModelConfig,)
    read = {key for each in records for f in fields(each) for key in _spellings(f.name, family)}
    read |= {*fixed, *_READ_ELSEWHERE}
    if hf.get("use_sliding_window") is False:
        read.add("sliding_window")
    understood = sorted(read.intersection(ignore_keys))
    require(
        not isinstance(ignore_keys, str) and not understood,
        f"ignore_keys is {list(ignore_keys)}, and {understood} are understood; allowed: a list of "
        "keys that are not",
    )
    unknown = {key: value for key, value in hf.items() if value and not (key in read or inert(key))}
    decisive = {key: each for key, each in unknown.items() if _matches(table()["decisive"], key)}
    require(not decisive, f"the model's configuration has {decisive!r:.200}, which decides what is "
            "computed and is not supported; allowed: null, false, 0 or empty")  # fmt: skip
    unknown = {key: value for key, value in unknown.items() if key not in ignore_keys}
    require(
        not unknown,
        f"the model's configuration has {unknown!r:.200}, which nothing here reads; allowed: keys "
        "of its family, generic ones, and values that are null, false, 0 or empty (if these change "
        f"no output, load with ignore_keys={[*unknown]})",
    )


def _matches(patterns: Iterable[str], key: str) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns)
