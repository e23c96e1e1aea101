"""A Hydra configuration as frozen dataclasses, checked on the way: the dataclasses are the schema.

OmegaConf's own structured configurations know no `Literal`, which is how a choice is spelled here.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

from llada_jax.config import require, require_choice

T = TypeVar("T")

_ALLOWED = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}


def read_config(schema: type[T], config: DictConfig) -> T:
    """`config` as a `schema`: a dataclass of plain values, choices, and dataclasses.

    Raises ValueError, with the full name of the key and what is allowed, for a key that the schema
    does not have or lacks, a value of the wrong type, and what the dataclasses themselves refuse.
    """
    return _section(schema, OmegaConf.to_container(config, resolve=True), "")


def _section(schema: Any, values: Any, path: str) -> Any:
    require(isinstance(values, Mapping), f"{path} is {values!r}; allowed: a section of settings")
    prefix = f"{path}." if path else ""
    hints = get_type_hints(schema)
    names = [field.name for field in fields(schema)]
    for key in values:
        require(key in names, f"{prefix}{key} is no setting; allowed: {', '.join(names)}")
    for field in fields(schema):
        optional = field.default is not MISSING or field.default_factory is not MISSING
        require(optional or field.name in values, f"{prefix}{field.name} is missing")
    checked = {key: _checked(hints[key], value, prefix + key) for key, value in values.items()}
    try:
        return schema(**checked)
    except ValueError as error:
        raise ValueError(f"{path}: {error}" if path else str(error)) from error


def _checked(hint: Any, value: Any, name: str) -> Any:
    if is_dataclass(hint):
        return _section(hint, value, name)
    options = get_args(hint)
    if get_origin(hint) in (Union, UnionType):  # only `X | None` is in use
        inner = next(option for option in options if option is not NoneType)
        return None if value is None else _checked(inner, value, name)
    if get_origin(hint) is Literal:
        require_choice(name, value, hint)
        return value
    if get_origin(hint) is tuple:  # only `tuple[X, ...]` is in use
        require(isinstance(value, list), f"{name} is {value!r}; allowed: a list")
        return tuple(_checked(options[0], item, f"{name}[{i}]") for i, item in enumerate(value))
    if hint is float and type(value) is int:
        return float(value)
    require(type(value) is hint, f"{name} is {value!r}; allowed: {_ALLOWED.get(hint, hint)}")
    return value
