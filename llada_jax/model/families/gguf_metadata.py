"""GGUF's spelling of the families that llama.cpp knows: the same names and keys for all."""

from collections.abc import Mapping
from typing import Any

from llada_jax.config import ModelConfig, require
from llada_jax.model.families.family import FFN, QKV, Names, in_layers
from llada_jax.model.families.registry import FAMILIES, REQUIRED, completed

GGUF_NAMES: Names = {
    "embedding": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "head": "output.weight",
    **in_layers("blk", {
        "attention_norm": "attn_norm.weight",
        **{f"attention.{name}": f"attn_{name[0]}.weight" for name in QKV},
        **{f"attention.{name}_bias": f"attn_{name[0]}.bias" for name in QKV},
        "attention.output": "attn_output.weight",
        "ffn_norm": "ffn_norm.weight",
        **{f"ffn.{name}": f"ffn_{name}.weight" for name in FFN},
    }),
}  # fmt: skip
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


def config_from_gguf(metadata: Mapping[str, Any], vocab_size: int) -> ModelConfig:
    """Returns the configuration of a GGUF file's metadata; `vocab_size` is the embedding's number
    of rows.

    Raises ValueError for an unknown architecture, a missing key, or RoPE scaling.
    """
    architecture: Any = metadata.get("general.architecture")
    known = {f.gguf_architecture: name for name, f in FAMILIES.items() if f.gguf_architecture}
    require(
        architecture in known,
        f"general.architecture is {architecture!r}; allowed: {', '.join(map(repr, known))}",
    )
    name = known[architecture]
    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    require(scaling == "none", f"{architecture}.rope.scaling.type is {scaling!r}; allowed: 'none'")
    keys = {ours: key.format(architecture=architecture) for ours, key in _GGUF_KEYS.items()}
    found = {ours: _decimal(metadata[key]) for ours, key in keys.items() if key in metadata}
    found.setdefault("vocab_size", vocab_size)
    for ours in (*REQUIRED, "norm_eps"):
        require(ours in found, f"the file's metadata lacks {keys[ours]!r}")
    return completed(name, {**FAMILIES[name].facts, **found})


def _decimal(value: Any) -> Any:
    """Returns the number that was meant: GGUF keeps float32, which has 7 digits."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
