"""Reads model configurations from the metadata of GGUF files.

llama.cpp uses the same tensor names and keys for all families, except that a key begins with the
family's architecture. Files of diffuse-cpp also use these names, but have the architecture
`diffuse` and the family in `diffuse.model_type`.
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
    """Returns the metadata key of each `ModelConfig` field."""
    return {ours: key.format(a=architecture) for ours, key in table()["gguf"]["keys"].items()}


def config_from_gguf(
    metadata: Mapping[str, Any], vocab_size: int, family_name: str | None = None
) -> ModelConfig:
    """Returns the configuration in the metadata of a GGUF file.

    Args:
      vocab_size: Number of rows of the embedding.
      family_name: The family, if the caller knows it. Diffusion models with the architecture of
        Llama or Qwen are converted as those, and no key distinguishes them.

    Raises ValueError for an unknown architecture, a missing key, or RoPE scaling.
    """
    stored_name, architecture = _family(metadata), str(metadata["general.architecture"])
    name = family_name or stored_name
    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    require(scaling == "none", f"{architecture}.rope.scaling.type is {scaling!r}; allowed: 'none'")
    keys = gguf_keys(architecture)
    fields = {field: _decimal(key, metadata[key]) for field, key in keys.items() if key in metadata}
    fields.setdefault("vocab_size", vocab_size)
    if DIFFUSE_MASK in metadata:
        fields["mask_id"] = number(DIFFUSE_MASK, metadata[DIFFUSE_MASK])
    for field in (*REQUIRED, "norm_eps"):
        require(field in fields, f"the file's metadata lacks {keys[field]!r}")
    if (facts := families()[name].moe_facts) is not None:
        fields["moe"] = MoEConfig(**facts, **_experts(metadata, architecture))
    config = completed(name, {**families()[name].facts, **fields})
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
    value: Any = metadata.get(key)
    require(value in known, f"{key} is {value!r}; allowed: {', '.join(map(repr, allowed))}")
    return known[value]


def rows_are_permuted(metadata: Mapping[str, Any]) -> bool:
    """Returns whether the rows of q and k have the interleaved order of llama.cpp's RoPE."""
    architecture = metadata["general.architecture"]
    permuted = {f.gguf_architecture for f in families().values() if f.gguf_permuted}
    return architecture in permuted


def with_rope_factors(config: ModelConfig, factors: np.ndarray) -> ModelConfig:
    """Returns the configuration with Llama 3's RoPE scaling, whose parameters are recovered from
    the divisors of the frequencies, `factors` [head_dim / 2].

    GGUF files contain only the divisors, so every power of two is tried as the original context
    length. Raises ValueError if none reproduces them.
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
    """Rounds a float to 7 digits, because GGUF stores float32: 1e-05 is read as 9.999999747e-06."""
    return float(f"{value:.7g}") if isinstance(number(key, value), float) else value
