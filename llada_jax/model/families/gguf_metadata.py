"""Configurations of GGUF files: the same names and keys for all families that llama.cpp knows."""

from collections.abc import Mapping
from typing import Any

from llada_jax.config import ModelConfig, MoEConfig, require
from llada_jax.model.families.family import REQUIRED, Names, completed, families, number, table


def gguf_names() -> Names:
    """Returns llama.cpp's names of tensors."""
    return table()["gguf"]["names"]


def gguf_keys(architecture: str) -> dict[str, str]:
    """Returns the keys of metadata by the names of `ModelConfig`."""
    return {ours: key.format(a=architecture) for ours, key in table()["gguf"]["keys"].items()}


def config_from_gguf(metadata: Mapping[str, Any], vocab_size: int) -> ModelConfig:
    """Returns the configuration of a GGUF file's metadata; `vocab_size` is the embedding's number
    of rows.

    Raises ValueError for an unknown architecture, a missing key, or RoPE scaling.
    """
    architecture: Any = metadata.get("general.architecture")
    known = {f.gguf_architecture: name for name, f in families().items() if f.gguf_architecture}
    require(
        architecture in known,
        f"general.architecture is {architecture!r}; allowed: {', '.join(map(repr, known))}",
    )
    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    require(scaling == "none", f"{architecture}.rope.scaling.type is {scaling!r}; allowed: 'none'")
    keys = gguf_keys(architecture)
    found = {ours: _decimal(key, metadata[key]) for ours, key in keys.items() if key in metadata}
    found.setdefault("vocab_size", vocab_size)
    for ours in (*REQUIRED, "norm_eps"):
        require(ours in found, f"the file's metadata lacks {keys[ours]!r}")
    name = known[architecture]
    if (facts := families()[name].moe_facts) is not None:
        found["moe"] = MoEConfig(**facts, **_experts(metadata, architecture))
    return completed(name, {**families()[name].facts, **found})


def _experts(metadata: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    keys = {our: key.format(a=architecture) for our, key in table()["gguf"]["expert_keys"].items()}
    for key in keys.values():
        require(key in metadata, f"the file's metadata lacks {key!r}")
    return {ours: number(key, metadata[key]) for ours, key in keys.items()}


def _decimal(key: str, value: Any) -> Any:
    """Returns the number that was meant: GGUF keeps float32, which has 7 digits."""
    return float(f"{value:.7g}") if isinstance(number(key, value), float) else value
