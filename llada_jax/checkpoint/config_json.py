"""Converts between a family's `config.json` and `ModelConfig`.

A key that is silently ignored could change the model's output. So every key must be understood
(a key of the family, or one with a single supported value), inert by the lists in `families.yaml`,
or off (null, false, 0 or empty). Any other key raises an error, and the caller can choose to ignore
it, unless its name suggests that it changes the computation.
"""

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
    """Returns the configuration of a model from its `config.json`.

    Args:
      hf: Content of `config.json`, with the keys of transformers 4 or 5.
      tensors: Names of the checkpoint's tensors, which determine flags that the configuration
        lacks. None if they are unknown.
      family_name: The family, if the caller overrides the one in the configuration.
      generation: Content of `generation_config.json`, for the ids that end an answer.
      ignore_keys: Unknown keys to ignore.

    Raises:
      ValueError: The family is unknown or only looks like a known one, a key is missing or unknown,
        a value is not a number, a feature is not supported (ALiBi, other RoPE scaling, an
        activation other than SiLU, a norm other than RMSNorm), or `ignore_keys` contains a key that
        is understood.
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
    files = (hf, generation or {})
    ends = [id_ for file in files for id_ in _as_list(file.get("eos_token_id"))]
    require(
        all(isinstance(id_, int) for id_ in ends), f"eos_token_id is {ends}; allowed: whole numbers"
    )
    hf["eos_token_id"], *stops = list(dict.fromkeys(ends)) or [None]
    values = {**family.facts, **_read(hf, family, ModelConfig), **scaling}
    values["stop_ids"] = tuple(stops)
    _require_fields(values, (*REQUIRED, *family.required), family)
    for flag, tensor in family.presence.items():
        values.setdefault(flag, tensors is None or tensor in tensors)
    values["rotary_dims"] = _rotary_dims(hf, values)
    if family.moe_facts is not None:
        moe = {**family.moe_facts, **_read(hf, family, MoEConfig)}
        _require_fields(moe, _REQUIRED_MOE, family)
        if hf.get("num_shared_experts"):
            moe["shared_width"] = (
                _plain("num_shared_experts", hf["num_shared_experts"]) * moe["expert_width"]
            )
        values["moe"] = MoEConfig(**moe)
    return completed(name, values)


def _as_list(ids: Any) -> list[Any]:
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def _rotary_dims(hf: Mapping[str, Any], values: Mapping[str, Any]) -> int:
    rotated = hf.get("partial_rotary_factor", 1.0)
    require(
        isinstance(rotated, int | float) and 0 < rotated <= 1,
        f"partial_rotary_factor is {rotated!r}; allowed: above 0, up to 1",
    )
    dims = round(values.get("head_dim", head_size(values)) * rotated)
    stored = hf.get("rotary_dim")
    require(stored in (None, dims), f"rotary_dim is {stored!r}; allowed: {dims}, as the rest says")
    return dims


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
    """Returns the `config.json` of a model with the keys of its family.

    `config_from_hf` inverts this, except for `stop_ids`, which belong in `generation_config.json`.
    Raises ValueError if the family has no keys for some fields of `config`.
    """
    family = families()[config.family]
    hf: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.model_types[0],
        **family.constants,
    }
    for field, keys in family.keys.items():
        value = getattr(config if hasattr(config, field) else config.moe, field, None)
        hf.update((key, _spell(key, value, config)) for key in keys if value is not None)
    if config.rope_scaling is not None:
        numbers = zip(_SCALED_BY, (config.rope_factor, config.rope_length), strict=True)
        scaling = {**_SCALED[config.rope_scaling], **dict(numbers)}
        if config.rope_scaling == "yarn":  # exists only in the format of transformers 5
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


def _require_fields(values: Mapping[str, Any], names: Iterable[str], family: Family) -> None:
    for name in names:
        keys = " or ".join(map(repr, _spellings(name, family)))
        require(name in values, f"the model's configuration lacks {keys}")


def _spellings(name: str, family: Family) -> list[str]:
    """Returns the keys of a field in this family, then in the others."""
    rows = (family, *families().values())
    return list(dict.fromkeys(key for row in rows for key in row.keys.get(name, ())))


def _family_keys(family: Family) -> set[str]:
    return {key for keys in family.keys.values() for key in keys}


def _read(hf: Mapping[str, Any], family: Family, record: type) -> dict[str, Any]:
    fixed = {*table()["computed"], *family.constants} - _family_keys(family)
    present = {key for key, value in hf.items() if value is not None} - fixed
    values = {}
    for field in fields(record):
        if keys := [key for key in _spellings(field.name, family) if key in present]:
            values[field.name] = _plain(keys[0], hf[keys[0]], field.type)
    return values


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
    """Returns the configuration in the format of transformers 4, and the fields of a scaled RoPE.

    Transformers 5 has RoPE's keys in the table `rope_parameters`; version 4 has them at the top
    level, and the scaling in `rope_scaling`.
    """
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
        # Beyond the trained length, the reference scales queries by their position. That is not
        # implemented, so the trained length limits the canvas.
        longest = number("max_position_embeddings", hf.get("max_position_embeddings", trained))
        plain["max_position_embeddings"] = min(longest, trained)
    return plain, {"rope_scaling": kind, "rope_factor": factor, "rope_length": trained}


def _reject_unsupported(
    hf: Mapping[str, Any], family: Family, ignore_keys: Collection[str]
) -> None:
    """Raises ValueError for keys with values that are not supported, and for unknown keys."""
    family_keys, inert = _family_keys(family), partial(_matches, table()["inert"])
    fixed = {**table()["computed"], **family.constants}
    for key, allowed in fixed.items():
        value, free = hf.get(key), inert(key) and key not in (*table()["computed"], "is_causal")
        require(
            free or key in family_keys or value in (allowed, None),
            f"{key} is {value!r}; allowed: {allowed!r}",
        )
    layers = hf.get("layer_types") or []
    require(
        isinstance(layers, list) and all(layer == "full_attention" for layer in layers),
        f"layer_types is {layers}; allowed: 'full_attention' alone",
    )
    records = (ModelConfig, MoEConfig) if family.moe_facts is not None else (ModelConfig,)
    read = {key for record in records for f in fields(record) for key in _spellings(f.name, family)}
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
    patterns = table()["decisive"]
    decisive = {key: value for key, value in unknown.items() if _matches(patterns, key)}
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
