"""The families of dLLMs, as a table: how a checkpoint's configuration and tensors are spelled.

A family is a row: which `model_type` and GGUF architecture it answers to, fixed facts of its
architecture, and the checkpoint's name of each parameter. The code that runs the model does not
know families; it reads the `ModelConfig` that a row gives.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from llada_jax.config import ModelConfig, MoEConfig, require

Names = Mapping[str, str]
"""Parameter path -> checkpoint name; `{i}` is the layer, `{e}` the expert. Parameters that share a
name are row ranges of one tensor, in the order of the tree."""
Keys = Mapping[str, tuple[str, ...]]
"""Configuration field -> its keys in `config.json`: all are written, the first present is read."""

_HF_ATTENTION = {
    "layers.{i}.attention.query": "model.layers.{i}.self_attn.q_proj.weight",
    "layers.{i}.attention.key": "model.layers.{i}.self_attn.k_proj.weight",
    "layers.{i}.attention.value": "model.layers.{i}.self_attn.v_proj.weight",
    "layers.{i}.attention.output": "model.layers.{i}.self_attn.o_proj.weight",
    "layers.{i}.attention.query_bias": "model.layers.{i}.self_attn.q_proj.bias",
    "layers.{i}.attention.key_bias": "model.layers.{i}.self_attn.k_proj.bias",
    "layers.{i}.attention.value_bias": "model.layers.{i}.self_attn.v_proj.bias",
    "layers.{i}.attention.query_norm": "model.layers.{i}.self_attn.q_norm.weight",
    "layers.{i}.attention.key_norm": "model.layers.{i}.self_attn.k_norm.weight",
}
_HF_FEED_FORWARD = {
    "layers.{i}.ffn.gate": "model.layers.{i}.mlp.gate_proj.weight",
    "layers.{i}.ffn.up": "model.layers.{i}.mlp.up_proj.weight",
    "layers.{i}.ffn.down": "model.layers.{i}.mlp.down_proj.weight",
}
_HF_EXPERTS = {
    "layers.{i}.ffn.router": "model.layers.{i}.mlp.gate.weight",
    "layers.{i}.ffn.selection_bias": "model.layers.{i}.mlp.gate.expert_bias",
    "layers.{i}.ffn.gate": "model.layers.{i}.mlp.experts.{e}.gate_proj.weight",
    "layers.{i}.ffn.up": "model.layers.{i}.mlp.experts.{e}.up_proj.weight",
    "layers.{i}.ffn.down": "model.layers.{i}.mlp.experts.{e}.down_proj.weight",
    "layers.{i}.ffn.shared.gate": "model.layers.{i}.mlp.shared_experts.gate_proj.weight",
    "layers.{i}.ffn.shared.up": "model.layers.{i}.mlp.shared_experts.up_proj.weight",
    "layers.{i}.ffn.shared.down": "model.layers.{i}.mlp.shared_experts.down_proj.weight",
}
_HF_OUTSIDE = {
    "embedding": "model.embed_tokens.weight",
    "layers.{i}.attention_norm": "model.layers.{i}.input_layernorm.weight",
    "layers.{i}.ffn_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
}
_LLADA_NAMES = {
    "embedding": "model.transformer.wte.weight",
    "layers.{i}.attention_norm": "model.transformer.blocks.{i}.attn_norm.weight",
    "layers.{i}.attention.query": "model.transformer.blocks.{i}.q_proj.weight",
    "layers.{i}.attention.key": "model.transformer.blocks.{i}.k_proj.weight",
    "layers.{i}.attention.value": "model.transformer.blocks.{i}.v_proj.weight",
    "layers.{i}.attention.output": "model.transformer.blocks.{i}.attn_out.weight",
    "layers.{i}.attention.query_bias": "model.transformer.blocks.{i}.q_proj.bias",
    "layers.{i}.attention.key_bias": "model.transformer.blocks.{i}.k_proj.bias",
    "layers.{i}.attention.value_bias": "model.transformer.blocks.{i}.v_proj.bias",
    "layers.{i}.ffn_norm": "model.transformer.blocks.{i}.ff_norm.weight",
    "layers.{i}.ffn.gate": "model.transformer.blocks.{i}.ff_proj.weight",
    "layers.{i}.ffn.up": "model.transformer.blocks.{i}.up_proj.weight",
    "layers.{i}.ffn.down": "model.transformer.blocks.{i}.ff_out.weight",
    "final_norm": "model.transformer.ln_f.weight",
    "head": "model.transformer.ff_out.weight",
}
_LLADA2_FUSED_QKV = "model.layers.{i}.attention.query_key_value.weight"
_LLADA2_NAMES = {
    **_HF_OUTSIDE,
    "embedding": "model.word_embeddings.weight",
    "layers.{i}.attention.query": _LLADA2_FUSED_QKV,
    "layers.{i}.attention.key": _LLADA2_FUSED_QKV,
    "layers.{i}.attention.value": _LLADA2_FUSED_QKV,
    "layers.{i}.attention.output": "model.layers.{i}.attention.dense.weight",
    "layers.{i}.attention.query_norm": "model.layers.{i}.attention.query_layernorm.weight",
    "layers.{i}.attention.key_norm": "model.layers.{i}.attention.key_layernorm.weight",
    **_HF_EXPERTS,
}
_DENSE_LAYER_OF_MOE = {f"dense:{path}": name for path, name in _HF_FEED_FORWARD.items()}

GGUF_NAMES: Names = {
    "embedding": "token_embd.weight",
    "layers.{i}.attention_norm": "blk.{i}.attn_norm.weight",
    "layers.{i}.attention.query": "blk.{i}.attn_q.weight",
    "layers.{i}.attention.key": "blk.{i}.attn_k.weight",
    "layers.{i}.attention.value": "blk.{i}.attn_v.weight",
    "layers.{i}.attention.output": "blk.{i}.attn_output.weight",
    "layers.{i}.attention.query_bias": "blk.{i}.attn_q.bias",
    "layers.{i}.attention.key_bias": "blk.{i}.attn_k.bias",
    "layers.{i}.attention.value_bias": "blk.{i}.attn_v.bias",
    "layers.{i}.ffn_norm": "blk.{i}.ffn_norm.weight",
    "layers.{i}.ffn.gate": "blk.{i}.ffn_gate.weight",
    "layers.{i}.ffn.up": "blk.{i}.ffn_up.weight",
    "layers.{i}.ffn.down": "blk.{i}.ffn_down.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
}


_HF_KEYS: Keys = {
    "vocab_size": ("vocab_size",),
    "width": ("hidden_size",),
    "n_layers": ("num_hidden_layers",),
    "n_heads": ("num_attention_heads",),
    "n_kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "ffn_width": ("intermediate_size",),
    "rope_theta": ("rope_theta",),
    "norm_eps": ("rms_norm_eps",),
    "max_length": ("max_position_embeddings",),
    "tied_embeddings": ("tie_word_embeddings",),
    "block_length": ("block_length",),
    "mask_id": ("mask_token_id",),
    "eos_id": ("eos_token_id",),
    "eot_id": ("eot_token_id",),
    "pad_id": ("pad_token_id",),
}
_LLADA_KEYS: Keys = {
    **{name: keys for name, keys in _HF_KEYS.items() if name != "head_dim"},
    "vocab_size": ("embedding_size", "vocab_size"),
    "width": ("d_model",),
    "n_layers": ("n_layers",),
    "n_heads": ("n_heads",),
    "n_kv_heads": ("n_kv_heads",),
    "ffn_width": ("mlp_hidden_size",),
    "max_length": ("max_sequence_length",),
    "qkv_bias": ("include_qkv_bias",),
    "tied_embeddings": ("weight_tying",),
}
_LLADA_MOE_KEYS: Keys = {
    **_HF_KEYS,
    "ffn_width": ("dense_intermediate_size", "intermediate_size"),
    "qk_norm": ("qk_layernorm",),
    "n_experts": ("num_experts",),
    "experts_per_token": ("num_experts_per_tok",),
    "expert_width": ("expert_intermediate_size",),
    "first_layer": ("moe_layer_freq",),
    "shared_width": ("shared_expert_intermediate_size",),
    "weight_scale": ("routed_scaling_factor",),
}
_LLADA2_KEYS: Keys = {
    **_HF_KEYS,
    "qk_norm": ("use_qk_norm",),
    "qkv_bias": ("use_qkv_bias",),
    "n_experts": ("num_experts",),
    "experts_per_token": ("num_experts_per_tok",),
    "expert_width": ("moe_intermediate_size",),
    "first_layer": ("first_k_dense_replace",),
    "shared_width": ("num_shared_experts",),
    "n_groups": ("n_group",),
    "groups_per_token": ("topk_group",),
    "weight_scale": ("routed_scaling_factor",),
}
_HF_CONSTANTS = {"hidden_act": "silu", "rope_scaling": None, "use_cache": False}
_LLADA_CONSTANTS = {
    "activation_type": "silu",
    "alibi": False,
    "attention_dropout": 0.0,
    "attention_layer_norm": False,
    "attention_layer_norm_with_affine": True,
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "embedding_dropout": 0.0,
    "flash_attention": False,
    "include_bias": False,
    "init_device": "cpu",
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "multi_query_attention": None,
    "residual_dropout": 0.0,
    "rope": True,
    "rope_full_precision": True,
    "scale_logits": False,
    "use_cache": False,
}
_GGUF_KEYS = {
    "vocab_size": "{architecture}.vocab_size",
    "width": "{architecture}.embedding_length",
    "n_layers": "{architecture}.block_count",
    "n_heads": "{architecture}.attention.head_count",
    "n_kv_heads": "{architecture}.attention.head_count_kv",
    "head_dim": "{architecture}.attention.key_length",
    "rotary_dims": "{architecture}.rope.dimension_count",
    "ffn_width": "{architecture}.feed_forward_length",
    "rope_theta": "{architecture}.rope.freq_base",
    "norm_eps": "{architecture}.attention.layer_norm_rms_epsilon",
    "max_length": "{architecture}.context_length",
    "shift_logits": "diffusion.shift_logits",
    "mask_id": "tokenizer.ggml.mask_token_id",
    "eos_id": "tokenizer.ggml.eos_token_id",
    "eot_id": "tokenizer.ggml.eot_token_id",
    "pad_id": "tokenizer.ggml.padding_token_id",
}
_REQUIRED = ("width", "n_layers", "n_heads", "vocab_size", "ffn_width", "rope_theta")
_REQUIRED_MOE = ("n_experts", "experts_per_token", "expert_width")


@dataclass(frozen=True)
class Family:
    """One row of the table."""

    model_types: tuple[str, ...]
    """The values of `model_type` that it answers to; the first one is written."""
    architecture: str
    """The class of the reference implementation, as `config.json` names it."""
    names: Names
    keys: Keys
    constants: Mapping[str, Any]
    """Keys of `config.json` that the reference needs, and that never vary."""
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


FAMILIES: Mapping[str, Family] = {
    "llada": Family(
        ("llada",),
        "LLaDAModelLM",
        _LLADA_NAMES,
        _LLADA_KEYS,
        _LLADA_CONSTANTS,
        gguf_architecture="llada",
        gguf_permuted=True,
        mask_id=126336,
    ),
    "llada_moe": Family(
        ("lladamoe", "llada_moe"),
        "LLaDAMoEModelLM",
        {**_HF_OUTSIDE, **_HF_ATTENTION, **_HF_EXPERTS, **_DENSE_LAYER_OF_MOE},
        _LLADA_MOE_KEYS,
        {
            **_HF_CONSTANTS,
            "attention_bias": False,
            "moe_router_enable_expert_bias": False,
            "moe_router_score_function": "softmax",
            "norm_topk_prob": False,
        },
        facts={"qk_norm": True},
        moe_facts={"router": "softmax", "normalize_weights": False},
        mask_id=156895,
    ),
    "llada2": Family(
        ("llada2_moe", "llada2"),
        "LLaDA2MoeModelLM",
        {**_LLADA2_NAMES, **_DENSE_LAYER_OF_MOE},
        _LLADA2_KEYS,
        {
            **_HF_CONSTANTS,
            "moe_router_enable_expert_bias": True,
            "norm_topk_prob": True,
            "router_dtype": "fp32",
            "score_function": "sigmoid",
            "use_bias": False,
        },
        facts={"block_length": 32},
        presence={"qk_norm": "model.layers.0.attention.query_layernorm.weight"},
        moe_facts={"router": "sigmoid", "normalize_weights": True, "selection_bias": True},
        mask_id=156895,
    ),
    "dream": Family(
        ("Dream", "dream"),
        "DreamModel",
        {**_HF_OUTSIDE, **_HF_ATTENTION, **_HF_FEED_FORWARD},
        _HF_KEYS,
        {**_HF_CONSTANTS, "use_sliding_window": False},
        facts={"qkv_bias": True, "shift_logits": True},
        gguf_architecture="dream",
        mask_id=151666,
    ),
    "qwen2": Family(
        ("qwen2", "a2d-qwen2"),
        "Qwen2ForCausalLM",
        {**_HF_OUTSIDE, **_HF_ATTENTION, **_HF_FEED_FORWARD},
        _HF_KEYS,
        {**_HF_CONSTANTS, "use_sliding_window": False},
        facts={"qkv_bias": True},
    ),
    "qwen3": Family(
        ("qwen3", "a2d-qwen3"),
        "Qwen3ForCausalLM",
        {**_HF_OUTSIDE, **_HF_ATTENTION, **_HF_FEED_FORWARD},
        _HF_KEYS,
        {**_HF_CONSTANTS, "attention_bias": False, "use_sliding_window": False},
        facts={"qk_norm": True},
    ),
}


def family_of(model_type: object) -> str:
    """The family that answers to a checkpoint's `model_type`; ValueError names what is known."""
    for name, family in FAMILIES.items():
        if model_type in family.model_types:
            return name
    known = sorted(kind for family in FAMILIES.values() for kind in family.model_types)
    raise ValueError(f"model_type is {model_type!r}; allowed: {', '.join(map(repr, known))}")


def config_from_hf(hf: Mapping[str, Any], tensors: Collection[str] | None = None) -> ModelConfig:
    """`ModelConfig` of a Hugging Face `config.json`, in either spelling of its keys.

    `tensors` are the names of the checkpoint's tensors: they decide what the configuration leaves
    open. Raises ValueError for an unknown family, a missing key, a value that is no number, or a
    feature that is not supported (ALiBi, RoPE scaling, an activation other than SiLU, a norm other
    than RMSNorm).
    """
    require("model_type" in hf, "the model's configuration lacks 'model_type'")
    name = family_of(hf["model_type"])
    family = FAMILIES[name]
    hf = {**hf, **_rope_parameters(hf)}
    _reject_unsupported(hf)
    found = {**family.facts, **_read(hf, family, ModelConfig)}
    _require_fields(found, _REQUIRED, family)
    for flag, tensor in family.presence.items():
        found.setdefault(flag, tensors is None or tensor in tensors)
    found.setdefault("head_dim", found["width"] // found["n_heads"])
    found["rotary_dims"] = round(found["head_dim"] * hf.get("partial_rotary_factor", 1.0))
    if family.moe_facts is not None:
        moe = {**family.moe_facts, **_read(hf, family, MoEConfig)}
        _require_fields(moe, _REQUIRED_MOE, family)
        if hf.get("num_shared_experts"):
            moe["shared_width"] = hf["num_shared_experts"] * moe["expert_width"]
        found["moe"] = MoEConfig(**moe)
    return _complete(name, found)


def config_from_gguf(metadata: Mapping[str, Any], vocab_size: int) -> ModelConfig:
    """`ModelConfig` of a GGUF file's metadata; `vocab_size` is the embedding's number of rows.

    Raises ValueError for an unknown architecture, a missing key, or RoPE scaling.
    """
    architecture = metadata.get("general.architecture")
    known = {family.gguf_architecture: name for name, family in FAMILIES.items()}
    known.pop(None, None)
    require(
        architecture in known,
        f"general.architecture is {architecture!r}; allowed: {', '.join(map(repr, known))}",
    )
    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    require(scaling == "none", f"{architecture}.rope.scaling.type is {scaling!r}; allowed: 'none'")
    keys = {ours: key.format(architecture=architecture) for ours, key in _GGUF_KEYS.items()}
    found = {ours: _decimal(metadata[key]) for ours, key in keys.items() if key in metadata}
    found.setdefault("vocab_size", vocab_size)
    for ours in (*_REQUIRED, "norm_eps"):
        require(ours in found, f"the file's metadata lacks {keys[ours]!r}")
    return _complete(known[architecture], {**FAMILIES[known[architecture]].facts, **found})


def config_to_hf(config: ModelConfig) -> dict[str, Any]:
    """The `config.json` of a model in its family's own spelling; `config_from_hf` inverts it.

    Raises ValueError, with the fields, where the family has no key for what `config` says.
    """
    family = FAMILIES[config.family]
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


def _decimal(value: Any) -> Any:
    """GGUF keeps float32: the number that was meant is the nearest one of 7 digits."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _spell(key: str, value: Any, config: ModelConfig) -> Any:
    if key == "moe_layer_freq":
        return [int(index >= value) for index in range(config.n_layers)]
    if key == "num_shared_experts" and config.moe is not None:
        return value // config.moe.expert_width
    return value


def _complete(name: str, found: dict[str, Any]) -> ModelConfig:
    family = FAMILIES[name]
    found.setdefault("n_kv_heads", found["n_heads"])
    found.setdefault("head_dim", found["width"] // found["n_heads"])
    found.setdefault("norm_eps", 1e-6)
    found.setdefault("max_length", 4096)
    released_mask = family.mask_id is not None and family.mask_id < found["vocab_size"]
    found.setdefault("mask_id", family.mask_id if released_mask else None)
    return ModelConfig(family=name, **found)


def _require_fields(found: Mapping[str, Any], names: tuple[str, ...], family: Family) -> None:
    for name in names:
        require(
            name in found,
            f"the model's configuration lacks {' or '.join(map(repr, _spellings(name, family)))}",
        )


def _spellings(name: str, family: Family) -> Iterator[str]:
    """Keys of a field: the family's own, then those of the other families."""
    rows = (family, *FAMILIES.values())
    return iter(dict.fromkeys(key for row in rows for key in row.keys.get(name, ())))


def _read(hf: Mapping[str, Any], family: Family, record: type) -> dict[str, Any]:
    found = {}
    for name in (f.name for f in fields(record)):
        for key in _spellings(name, family):
            if hf.get(key) is not None:
                found[name] = _number(hf, key)
                break
    return found


def _number(hf: Mapping[str, Any], key: str) -> Any:
    value = hf[key]
    if key == "moe_layer_freq" and isinstance(value, list):
        first = value.count(0)
        require(
            all(not entry for entry in value[:first]) and all(value[first:]),
            f"{key} is {value}; allowed: zeros, then ones",
        )
        return first
    require(isinstance(value, int | float), f"{key} is {value!r}; allowed: a number")
    return value


def _rope_parameters(hf: Mapping[str, Any]) -> dict[str, Any]:
    """RoPE's keys where transformers 5 writes them: in a table of their own."""
    rope = hf.get("rope_parameters") or {}
    kind = rope.get("rope_type", "default")
    require(kind == "default", f"rope_type is {kind!r}; allowed: 'default'")
    return {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in rope}


def _reject_unsupported(hf: Mapping[str, Any]) -> None:
    for key, allowed in {
        "alibi": (False, None),
        "rope": (True, None),
        "rope_scaling": (None,),
        "activation_type": ("silu", None),
        "hidden_act": ("silu", None),
        "layer_norm_type": ("rms", None),
        "block_type": ("llama", None),
        "scale_logits": (False, None),
        "input_emb_norm": (False, None),
        "include_bias": (False, None),
        "attention_bias": (False, None),
        "multi_query_attention": (False, None),
        "use_sliding_window": (False, None),
    }.items():
        value = hf.get(key)
        require(value in allowed, f"{key} is {value!r}; allowed: {allowed[0]!r}")


def checkpoint_name(names: Names, path: str, *, routed: bool) -> str:
    """The template of a parameter's name; `path` has `{i}` in place of the layer's number."""
    dense = f"dense:{path}"
    return names[dense] if not routed and dense in names else names[path]
