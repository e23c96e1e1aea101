"""Policies as values that JAX maps over: numbers are leaves, choices are static.

So a sweep over a number compiles once, and another choice, or another class of the same name, is
another program.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar, dataclass_transform, get_type_hints

import jax

from llada_jax.config import SamplerConfig

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def policy(cls: type[T]) -> type[T]:
    """Makes a class a frozen dataclass and a pytree, whose leaves are its fields of type `float` or
    `float | None`."""
    made: Any = dataclass(frozen=True, kw_only=True)(cls)
    hints = get_type_hints(made)
    numbers = (each.name for each in fields(made))
    _register(made, [name for name in numbers if hints[name] in (float, float | None)])
    return made


def _register(cls: Any, leaves: Sequence[str]) -> None:
    """Registers a class as `jax.tree_util.register_dataclass` does, but rebuilds values without
    checking them again: in a program, leaves are no numbers that could be compared."""
    names = [each.name for each in fields(cls)]
    rest = [name for name in names if name not in leaves]

    def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(value, n) for n in leaves], tuple(getattr(value, n) for n in rest)

    def unflatten(static: tuple[Any, ...], numbers: Sequence[Any]) -> Any:
        value = object.__new__(cls)
        for name, each in (*zip(leaves, numbers, strict=True), *zip(rest, static, strict=True)):
            object.__setattr__(value, name, each)
        return value

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)


_register(SamplerConfig, ("rule", "window"))
