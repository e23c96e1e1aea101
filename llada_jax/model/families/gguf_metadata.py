"""Configurations of GGUF files: the same names and keys for all families that llama.cpp knows.

diffuse-cpp's files have these names, too, and their own word for the family.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from llada_jax.config import ModelConfig, MoEConfig, require
from llada_jax.model.families.family import REQUIRED, Names, completed, families, number, table
from llada_jax.model.layers import rope_stretch

DIFFUSE_MASK = "diffuse.mask_token_id"


def gguf_names() -> Names:
    """Returns llama.cpp's names of tensors."""
    return table()["gguf"]["names"]


def gguf_keys(architecture: str) -> dict[str, str]:
    """Returns the keys of metadata by the names of `ModelConfig`."""
    return {ours: key.format(a=architecture) for ours, key in table()["gguf"]["keys"].items()}


def config_from_gguf(
    metadata: Mapping[str, Any], vocab_size: int, family_name: str | None = None
) -> ModelConfig:
    """Returns the configuration of a GGUF file's metadata; `vocab_size` is the embedding's number
    of rows.

    Args:
      family_name: the family, if the caller knows it: diffusion models of Llama's and Qwen's shapes
        are converted as those, which no key tells.

    Raises ValueError for an unknown architecture, a missing key, or RoPE scaling.
    """
    known, architecture = _family(metadata), str(metadata["general.architecture"])
    name = family_name or known
    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    require(scaling == "none", f"{architecture}.rope.scaling.type is {scaling!r}; allowed: 'none'")
    keys = gguf_keys(architecture)
    found = {ours: _decimal(key, metadata[key]) for ours, key in keys.items() if key in metadata}
    found.setdefault("vocab_size", vocab_size)
    if DIFFUSE_MASK in metadata:
        found["mask_id"] = number(DIFFUSE_MASK, metadata[DIFFUSE_MASK])
    for ours in (*REQUIRED, "norm_eps"):
        require(ours in found, f"the file's metadata lacks {keys[ours]!r}")
    if (facts := families()[name].moe_facts) is not None:
        found["moe"] = MoEConfig(**facts, **_experts(metadata, architecture))
    config = completed(name, {**families()[name].facts, **found})
    require(
        family_name is not None or config.causal is None or config.mask_id is None,
        f"the file has {keys['mask_id']!r} in the architecture of an autoregressive model, "
        f"{architecture!r}; allowed: family=..., the diffusion model's",
    )
    return config


def _family(metadata: Mapping[str, Any]) -> str:
    known = {f.gguf_architecture: name for name, f in families().items() if f.gguf_architecture}
    key, allowed = "general.architecture", [*known, "diffuse"]
    if metadata.get(key) == "diffuse":
        known = table()["gguf"]["diffuse"]
        key, allowed = "diffuse.model_type", [*known]
    found: Any = metadata.get(key)
    require(found in known, f"{key} is {found!r}; allowed: {', '.join(map(repr, allowed))}")
    return known[found]


def rows_are_permuted(metadata: Mapping[str, Any]) -> bool:
    """Tells whether the file has the rows of q and k in llama.cpp's order for its own RoPE."""
    architecture = metadata["general.architecture"]
    permuted = {f.gguf_architecture for f in families().values() if f.gguf_permuted}
    return architecture in permuted


def with_rope_factors(config: ModelConfig, factors: np.ndarray) -> ModelConfig:
    """Returns the configuration with the scaling of RoPE that a file has as the divisors of its
    frequencies [half]: Llama 3's, of the length that these divisors are of.

    Raises ValueError for other divisors.
    """
    for length in (1 << bits for bits in range(4, 21)):
        scaled = config.replace(
            rope_scaling="llama3", rope_factor=round(float(factors.max()), 4), rope_length=length
        )
        expected = np.asarray(1 / rope_stretch(scaled))
        if factors.shape == expected.shape and np.allclose(factors, expected, rtol=1e-4):
            return scaled
    raise ValueError(
        f"rope_freqs.weight is {factors.tolist()}; allowed: the divisors of Llama 3's RoPE"
    )


def _experts(metadata: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    keys = {our: key.format(a=architecture) for our, key in table()["gguf"]["expert_keys"].items()}
    for key in keys.values():
        require(key in metadata, f"the file's metadata lacks {key!r}")
    return {ours: number(key, metadata[key]) for ours, key in keys.items()}


def _decimal(key: str, value: Any) -> Any:
    """Returns the number that was meant: GGUF keeps float32, which has 7 digits."""
    return float(f"{value:.7g}") if isinstance(number(key, value), float) else value
