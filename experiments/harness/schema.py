"""A Hydra configuration as frozen dataclasses: OmegaConf's own structured configurations know no
`Literal`, which is how a choice is spelled here."""

from typing import TypeVar

from omegaconf import DictConfig, OmegaConf

from llada_jax.config_files import checked_dataclass

T = TypeVar("T")


def read_config(schema: type[T], config: DictConfig) -> T:
    """Returns `config`, its interpolations resolved, as `checked_dataclass` does."""
    return checked_dataclass(schema, OmegaConf.to_container(config, resolve=True))
