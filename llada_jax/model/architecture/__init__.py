"""What models consist of, as data without JAX: the shapes that come with the package."""

from os import PathLike
from pathlib import Path

from llada_jax.config import ModelConfig
from llada_jax.config_files import checked_dataclass, find_yaml, read_yaml

ARCHITECTURES = Path(__file__).parent


def architecture(name_or_path: str | PathLike[str]) -> ModelConfig:
    """Reads a model's shape: a file of this folder by name (`llada_8b`), or a YAML file of yours.

    Raises ValueError that lists the names, or names the entry that is wrong.
    """
    path = find_yaml("shape", ARCHITECTURES, name_or_path)
    try:
        return checked_dataclass(ModelConfig, read_yaml(path))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
