"""The families of dLLMs, as a table: a file for each group of relatives, a row for each family."""

from llada_jax.model.families.config_json import config_from_hf, config_to_hf
from llada_jax.model.families.family import Family, Names, checkpoint_name
from llada_jax.model.families.gguf_metadata import GGUF_NAMES, config_from_gguf
from llada_jax.model.families.registry import FAMILIES, family_of

__all__ = [
    "FAMILIES",
    "GGUF_NAMES",
    "Family",
    "Names",
    "checkpoint_name",
    "config_from_gguf",
    "config_from_hf",
    "config_to_hf",
    "family_of",
]
