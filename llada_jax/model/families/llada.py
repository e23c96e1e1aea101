"""LLaDA (arXiv 2502.09992), LLaDA-MoE (arXiv 2509.24389) and LLaDA2 (LLaDA2.0 technical report)."""

from llada_jax.model.families.family import (
    HF_ATTENTION,
    HF_CONSTANTS,
    HF_EXPERTS,
    HF_KEYS,
    HF_OUTSIDE,
    QKV,
    Family,
    Keys,
    in_layers,
)

_LLADA_KEYS: Keys = {
    **{name: keys for name, keys in HF_KEYS.items() if name != "head_dim"},
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
    **HF_KEYS,
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
    **HF_KEYS,
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
_LLADA_LACKS = (
    *("alibi", "attention_layer_norm", "bias_for_layer_norm", "flash_attention", "include_bias"),
    *("input_emb_norm", "scale_logits", "use_cache"),
)
_MOE_MASK_ID = 156895

_LLADA_NAMES = {
    "embedding": "model.transformer.wte.weight",
    "final_norm": "model.transformer.ln_f.weight",
    "head": "model.transformer.ff_out.weight",
    **in_layers("model.transformer.blocks", {
        "attention_norm": "attn_norm.weight",
        **{f"attention.{name}": f"{name[0]}_proj.weight" for name in QKV},
        **{f"attention.{name}_bias": f"{name[0]}_proj.bias" for name in QKV},
        "attention.output": "attn_out.weight",
        "ffn_norm": "ff_norm.weight",
        "ffn.gate": "ff_proj.weight",
        "ffn.up": "up_proj.weight",
        "ffn.down": "ff_out.weight",
    }),
}  # fmt: skip
LLADA = Family(
    model_types=("llada",),
    architecture="LLaDAModelLM",
    names=_LLADA_NAMES,
    keys=_LLADA_KEYS,
    constants={
        **dict.fromkeys(_LLADA_LACKS, False),
        **dict.fromkeys(("attention_dropout", "embedding_dropout", "residual_dropout"), 0.0),
        "activation_type": "silu",
        "attention_layer_norm_with_affine": True,
        "block_group_size": 1,
        "block_type": "llama",
        "init_device": "cpu",
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "multi_query_attention": None,
        "rope": True,
        "rope_full_precision": True,
    },
    gguf_architecture="llada",
    gguf_permuted=True,
    mask_id=126336,
)

LLADA_MOE = Family(
    model_types=("lladamoe", "llada_moe"),
    architecture="LLaDAMoEModelLM",
    names={**HF_OUTSIDE, **HF_ATTENTION, **HF_EXPERTS},
    keys=_LLADA_MOE_KEYS,
    constants={
        **HF_CONSTANTS,
        "attention_bias": False,
        "moe_router_enable_expert_bias": False,
        "moe_router_score_function": "softmax",
        "norm_topk_prob": False,
    },
    facts={"qk_norm": True},
    moe_facts={"router": "softmax", "normalize_weights": False},
    mask_id=_MOE_MASK_ID,
)

_LLADA2_NAMES = {
    **HF_OUTSIDE,
    **HF_EXPERTS,
    "embedding": "model.word_embeddings.weight",
    **in_layers("model.layers", {
        **{f"attention.{name}": "attention.query_key_value.weight" for name in QKV},
        "attention.output": "attention.dense.weight",
        "attention.query_norm": "attention.query_layernorm.weight",
        "attention.key_norm": "attention.key_layernorm.weight",
    }),
}  # fmt: skip
LLADA2 = Family(
    model_types=("llada2_moe", "llada2"),
    architecture="LLaDA2MoeModelLM",
    names=_LLADA2_NAMES,
    keys=_LLADA2_KEYS,
    constants={
        **HF_CONSTANTS,
        "moe_router_enable_expert_bias": True,
        "norm_topk_prob": True,
        "router_dtype": "fp32",
        "score_function": "sigmoid",
        "use_bias": False,
    },
    facts={"block_length": 32},
    presence={"qk_norm": "model.layers.0.attention.query_layernorm.weight"},
    moe_facts={"router": "sigmoid", "normalize_weights": True, "selection_bias": True},
    mask_id=_MOE_MASK_ID,
)
