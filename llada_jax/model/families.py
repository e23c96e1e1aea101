"""The families of dLLMs, as a table: how a checkpoint's configuration and tensors are spelled.

A family is a row: which `model_type` and GGUF architecture it answers to, fixed facts of its
architecture, and the checkpoint's name of each parameter. The code that runs the model does not
know families; it reads the `ModelConfig` that a row gives.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llada_jax.config import ModelConfig, MoEConfig, require

Names = Mapping[str, str]
"""Parameter path -> checkpoint name; `{i}` is the layer, `{e}` the expert."""

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


@dataclass(frozen=True)
class Family:
    """One row of the table."""

    model_types: tuple[str, ...]
    names: Names
    facts: Mapping[str, Any] = field(default_factory=dict)
    """`ModelConfig` fields that the architecture fixes."""
    moe_facts: Mapping[str, Any] | None = None
    """`MoEConfig` fields that the architecture fixes; None for dense families."""
    fused_qkv: bool = False
    """Queries, keys and values are the row ranges of one tensor, in this order."""
    gguf_architecture: str | None = None
    gguf_permuted: bool = False
    """llama.cpp's converter interleaved the rows of q and k for its own RoPE."""
    mask_id: int | None = None
    """[MASK] of the released checkpoints, where their configuration does not name it."""


FAMILIES: Mapping[str, Family] = {
    "llada": Family(
        ("llada",), _LLADA_NAMES, gguf_architecture="llada", gguf_permuted=True, mask_id=126336
    ),
    "llada_moe": Family(
        ("lladamoe", "llada_moe"),
        {**_HF_OUTSIDE, **_HF_ATTENTION, **_HF_EXPERTS, **_DENSE_LAYER_OF_MOE},
        facts={"qk_norm": True},
        moe_facts={"router": "softmax", "normalize_weights": False},
        mask_id=156895,
    ),
    "llada2": Family(
        ("llada2_moe", "llada2"),
        {**_LLADA2_NAMES, **_DENSE_LAYER_OF_MOE},
        facts={"qk_norm": True, "block_length": 32},
        moe_facts={"router": "sigmoid", "normalize_weights": True, "selection_bias": True},
        fused_qkv=True,
        mask_id=156895,
    ),
    "dream": Family(
        ("Dream", "dream"),
        {**_HF_OUTSIDE, **_HF_ATTENTION, **_HF_FEED_FORWARD},
        facts={"qkv_bias": True, "shift_logits": True},
        gguf_architecture="dream",
        mask_id=151666,
    ),
    "qwen2": Family(
        ("qwen2", "a2d-qwen2"),
        {**_HF_OUTSIDE, **_HF_ATTENTION, **_HF_FEED_FORWARD},
        facts={"qkv_bias": True},
    ),
    "qwen3": Family(
        ("qwen3", "a2d-qwen3"),
        {**_HF_OUTSIDE, **_HF_ATTENTION, **_HF_FEED_FORWARD},
        facts={"qk_norm": True},
    ),
}

_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "vocab_size": ("embedding_size", "vocab_size"),
    "width": ("d_model", "hidden_size"),
    "n_layers": ("n_layers", "num_hidden_layers"),
    "n_heads": ("n_heads", "num_attention_heads"),
    "n_kv_heads": ("n_kv_heads", "num_key_value_heads"),
    "head_dim": ("head_dim",),
    "ffn_width": ("mlp_hidden_size", "dense_intermediate_size", "intermediate_size"),
    "rope_theta": ("rope_theta",),
    "norm_eps": ("rms_norm_eps",),
    "max_length": ("max_sequence_length", "max_position_embeddings"),
    "qkv_bias": ("include_qkv_bias", "use_qkv_bias"),
    "qk_norm": ("use_qk_norm", "qk_layernorm"),
    "tied_embeddings": ("weight_tying", "tie_word_embeddings"),
    "block_length": ("block_length",),
    "mask_id": ("mask_token_id",),
    "eos_id": ("eos_token_id",),
    "eot_id": ("eot_token_id",),
    "pad_id": ("pad_token_id",),
}
_MOE_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "n_experts": ("num_experts",),
    "experts_per_token": ("num_experts_per_tok",),
    "expert_width": ("expert_intermediate_size", "moe_intermediate_size"),
    "first_layer": ("first_k_dense_replace",),
    "shared_width": ("shared_expert_intermediate_size",),
    "n_groups": ("n_group",),
    "groups_per_token": ("topk_group",),
    "weight_scale": ("routed_scaling_factor",),
}


def family_of(model_type: str) -> str:
    """The family that answers to a checkpoint's `model_type`; ValueError names what is known."""
    for name, family in FAMILIES.items():
        if model_type in family.model_types:
            return name
    known = sorted(kind for family in FAMILIES.values() for kind in family.model_types)
    raise ValueError(f"model_type is {model_type!r}; allowed: {', '.join(map(repr, known))}")


def config_from_hf(hf: Mapping[str, Any]) -> ModelConfig:
    """`ModelConfig` of a Hugging Face `config.json`, in either spelling of its keys.

    Raises ValueError for an unknown family, a missing key, or a feature that is not supported
    (ALiBi, RoPE scaling, an activation other than SiLU, a norm other than RMSNorm).
    """
    require("model_type" in hf, "the model's configuration lacks 'model_type'")
    name = family_of(hf["model_type"])
    family = FAMILIES[name]
    _reject_unsupported(hf)
    found = {**family.facts, **_read(hf, _SPELLINGS)}
    for key in ("width", "n_layers", "n_heads", "vocab_size", "ffn_width", "rope_theta"):
        require(
            key in found, f"the model's configuration lacks {' or '.join(map(repr, _SPELLINGS[key]))}"
        )
    found.setdefault("n_kv_heads", found["n_heads"])
    found.setdefault("head_dim", found["width"] // found["n_heads"])
    found.setdefault("norm_eps", 1e-6)
    found.setdefault("max_length", 4096)
    found["rotary_dims"] = int(found["head_dim"] * hf.get("partial_rotary_factor", 1.0))
    released_mask = family.mask_id is not None and family.mask_id < found["vocab_size"]
    found.setdefault("mask_id", family.mask_id if released_mask else None)
    if family.moe_facts is not None:
        found["moe"] = _moe_from_hf(hf, family.moe_facts)
    return ModelConfig(family=name, **found)


def _read(hf: Mapping[str, Any], spellings: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    found = {}
    for ours, theirs in spellings.items():
        value = next((hf[key] for key in theirs if hf.get(key) is not None), None)
        if value is not None:
            found[ours] = value
    return found


def _moe_from_hf(hf: Mapping[str, Any], facts: Mapping[str, Any]) -> MoEConfig:
    found = {**facts, **_read(hf, _MOE_SPELLINGS)}
    for key in ("n_experts", "experts_per_token", "expert_width"):
        require(key in found, f"the model's configuration lacks {_MOE_SPELLINGS[key][0]!r}")
    if hf.get("num_shared_experts"):
        found["shared_width"] = hf["num_shared_experts"] * found["expert_width"]
    return MoEConfig(**found)


def _reject_unsupported(hf: Mapping[str, Any]) -> None:
    for key, allowed in {
        "alibi": (False, None),
        "rope_scaling": (None,),
        "activation_type": ("silu", None),
        "hidden_act": ("silu", None),
        "layer_norm_type": ("rms", None),
        "block_type": ("llama", None),
        "scale_logits": (False, None),
        "input_emb_norm": (False, None),
    }.items():
        value = hf.get(key)
        require(value in allowed, f"{key} is {value!r}; allowed: {allowed[0]!r}")


def checkpoint_name(names: Names, path: str, *, routed: bool) -> str:
    """The template of a parameter's name; `path` has `{i}` in place of the layer's number."""
    dense = f"dense:{path}"
    return names[dense] if not routed and dense in names else names[path]
