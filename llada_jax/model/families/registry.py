"""The table of families, and the fields that every checkpoint's configuration must give."""

from collections.abc import Mapping
from typing import Any

from llada_jax.config import ModelConfig
from llada_jax.model.families.family import Family
from llada_jax.model.families.llada import LLADA, LLADA2, LLADA_MOE
from llada_jax.model.families.qwen import DREAM, QWEN2, QWEN3

FAMILIES: Mapping[str, Family] = {
    "llada": LLADA,
    "llada_moe": LLADA_MOE,
    "llada2": LLADA2,
    "dream": DREAM,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
}
REQUIRED = ("width", "n_layers", "n_heads", "vocab_size", "ffn_width", "rope_theta")


def family_of(model_type: object) -> str:
    """Returns the family that answers to a checkpoint's `model_type`; ValueError names the known
    ones."""
    for name, family in FAMILIES.items():
        if model_type in family.model_types:
            return name
    known = sorted(kind for family in FAMILIES.values() for kind in family.model_types)
    raise ValueError(f"model_type is {model_type!r}; allowed: {', '.join(map(repr, known))}")


def completed(name: str, found: Mapping[str, Any]) -> ModelConfig:
    """Returns the configuration of a family's model, with what its checkpoint leaves open."""
    family = FAMILIES[name]
    released_mask = family.mask_id is not None and family.mask_id < found["vocab_size"]
    defaults = {
        "n_kv_heads": found["n_heads"],
        "head_dim": found["width"] // found["n_heads"],
        "norm_eps": 1e-6,
        "max_length": 4096,
        "mask_id": family.mask_id if released_mask else None,
    }
    return ModelConfig(family=name, **{**defaults, **found})
