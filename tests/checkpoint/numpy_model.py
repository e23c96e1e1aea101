"""A second implementation of a dense model's forward, in float64 NumPy.

It reads the tensors by their Hugging Face names, one head and one query at a time, and shares
nothing with the package. The golden of Dream ties it to PyTorch.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

Tensors = Mapping[str, np.ndarray]


def numpy_logits(hf: Mapping[str, Any], tensors: Tensors, tokens: np.ndarray) -> np.ndarray:
    """Logits [B, L, V] of a Qwen2, Qwen3 or Dream checkpoint, without a mask."""
    wide = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    return np.stack([_canvas_logits(hf, wide, row) for row in tokens])


def random_tensors(hf: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Tensors of a checkpoint with this configuration, float32."""
    rng = np.random.default_rng(seed)
    width, heads = hf["hidden_size"], hf["num_attention_heads"]
    head = hf.get("head_dim", width // heads)
    query, key = heads * head, hf["num_key_value_heads"] * head
    ffn = hf["intermediate_size"]
    shapes = {
        "self_attn.q_proj.weight": (query, width),
        "self_attn.k_proj.weight": (key, width),
        "self_attn.v_proj.weight": (key, width),
        "self_attn.o_proj.weight": (width, query),
        "mlp.gate_proj.weight": (ffn, width),
        "mlp.up_proj.weight": (ffn, width),
        "mlp.down_proj.weight": (width, ffn),
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
    }
    if hf["model_type"].endswith("qwen3"):
        shapes |= {"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
    else:
        sizes = {"q": query, "k": key, "v": key}
        shapes |= {f"self_attn.{name}_proj.bias": (size,) for name, size in sizes.items()}
    outside = {
        "model.embed_tokens.weight": (hf["vocab_size"], width),
        "model.norm.weight": (width,),
    }
    if not hf["tie_word_embeddings"]:
        outside["lm_head.weight"] = (hf["vocab_size"], width)
    layers = range(hf["num_hidden_layers"])
    named = outside | {f"model.layers.{i}.{n}": s for i in layers for n, s in shapes.items()}
    return {name: _random(rng, name, shape) for name, shape in named.items()}


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    around_one = "norm" in name
    scale = 0.2 if len(shape) == 1 else shape[-1] ** -0.5
    return (around_one + scale * rng.standard_normal(shape)).astype(np.float32)


def _canvas_logits(hf: Mapping[str, Any], tensors: Tensors, tokens: np.ndarray) -> np.ndarray:
    x = tensors["model.embed_tokens.weight"][tokens]
    for index in range(hf["num_hidden_layers"]):
        layer = {
            name.removeprefix(f"model.layers.{index}."): tensor
            for name, tensor in tensors.items()
            if name.startswith(f"model.layers.{index}.")
        }
        x = x + _attention(hf, layer, _norm(hf, x, layer["input_layernorm.weight"]))
        x = x + _mlp(layer, _norm(hf, x, layer["post_attention_layernorm.weight"]))
    head = "model.embed_tokens.weight" if hf["tie_word_embeddings"] else "lm_head.weight"
    return _norm(hf, x, tensors["model.norm.weight"]) @ tensors[head].T


def _norm(hf: Mapping[str, Any], x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + hf["rms_norm_eps"]) * weight


def _mlp(layer: Tensors, x: np.ndarray) -> np.ndarray:
    gate = x @ layer["mlp.gate_proj.weight"].T
    up = x @ layer["mlp.up_proj.weight"].T
    return (gate / (1 + np.exp(-gate)) * up) @ layer["mlp.down_proj.weight"].T


def _attention(hf: Mapping[str, Any], layer: Tensors, x: np.ndarray) -> np.ndarray:
    heads, kv_heads = hf["num_attention_heads"], hf["num_key_value_heads"]
    size = hf.get("head_dim", hf["hidden_size"] // heads)
    mixed = []
    for head in range(heads):
        query = _head(hf, layer, x, "q", head, size)
        key = _head(hf, layer, x, "k", head * kv_heads // heads, size)
        value = _head(hf, layer, x, "v", head * kv_heads // heads, size)
        scores = query @ key.T / np.sqrt(size)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed.append(shares / shares.sum(axis=-1, keepdims=True) @ value)
    return np.concatenate(mixed, axis=-1) @ layer["self_attn.o_proj.weight"].T


def _head(
    hf: Mapping[str, Any], layer: Tensors, x: np.ndarray, name: str, head: int, size: int
) -> np.ndarray:
    rows = slice(head * size, (head + 1) * size)
    out = x @ layer[f"self_attn.{name}_proj.weight"][rows].T
    if f"self_attn.{name}_proj.bias" in layer:
        out = out + layer[f"self_attn.{name}_proj.bias"][rows]
    if f"self_attn.{name}_norm.weight" in layer:
        out = _norm(hf, out, layer[f"self_attn.{name}_norm.weight"])
    return out if name == "v" else np.stack([_turn(hf, row, i) for i, row in enumerate(out)])


def _turn(hf: Mapping[str, Any], row: np.ndarray, position: int) -> np.ndarray:
    half = len(row) // 2
    angles = position / hf["rope_theta"] ** (2 * np.arange(half) / len(row))
    pairs = (row[:half] + 1j * row[half:]) * np.exp(1j * angles)
    return np.concatenate([pairs.real, pairs.imag])
