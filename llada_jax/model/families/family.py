"""One row of the table of families, and what most families share.

A row says which `model_type` and GGUF architecture a family answers to, the fixed facts of its
architecture, and how its checkpoints spell configuration and parameters. The code that runs the
model does not know families; it reads the `ModelConfig` that a row gives.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Names = Mapping[str, str]
"""Parameter path -> checkpoint name; `{i}` is the layer, `{e}` the expert. Parameters that share a
name are row ranges of one tensor, in the order of the tree. `dense:` before a path is for layers
without routed experts, where their names differ."""
Keys = Mapping[str, tuple[str, ...]]
"""Configuration field -> its keys in `config.json`: all are written, the first present is read."""
QKV = ("query", "key", "value")
FFN = ("gate", "up", "down")


@dataclass(frozen=True, kw_only=True)
class Family:
    """How the checkpoints of one family are spelled."""

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


def checkpoint_name(names: Names, path: str, *, routed: bool) -> str:
    """Returns the template of a parameter's name; `path` has `{i}` for the layer's number."""
    dense = f"dense:{path}"
    return names[dense] if not routed and dense in names else names[path]


def in_layers(prefix: str, names: Names) -> dict[str, str]:
    """Returns the names of parameters of layers, each given without the layer on both sides."""
    return {f"layers.{{i}}.{path}": f"{prefix}.{{i}}.{name}" for path, name in names.items()}


HF_OUTSIDE = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
    "layers.{i}.attention_norm": "model.layers.{i}.input_layernorm.weight",
    "layers.{i}.ffn_norm": "model.layers.{i}.post_attention_layernorm.weight",
}
HF_ATTENTION = in_layers("model.layers", {
    "attention.output": "self_attn.o_proj.weight",
    "attention.query_norm": "self_attn.q_norm.weight",
    "attention.key_norm": "self_attn.k_norm.weight",
    **{f"attention.{name}": f"self_attn.{name[0]}_proj.weight" for name in QKV},
    **{f"attention.{name}_bias": f"self_attn.{name[0]}_proj.bias" for name in QKV},
})  # fmt: skip
HF_FEED_FORWARD = in_layers(
    "model.layers", {f"ffn.{name}": f"mlp.{name}_proj.weight" for name in FFN}
)
HF_EXPERTS = in_layers("model.layers", {
    "ffn.router": "mlp.gate.weight",
    "ffn.selection_bias": "mlp.gate.expert_bias",
    **{f"ffn.{name}": f"mlp.experts.{{e}}.{name}_proj.weight" for name in FFN},
    **{f"ffn.shared.{name}": f"mlp.shared_experts.{name}_proj.weight" for name in FFN},
}) | {f"dense:{path}": name for path, name in HF_FEED_FORWARD.items()}  # fmt: skip
"""Of layers with routed experts, and of the dense ones among them."""

HF_KEYS: Keys = {
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
HF_CONSTANTS = {"hidden_act": "silu", "rope_scaling": None, "use_cache": False}
