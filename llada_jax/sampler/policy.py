"""Policies as values that JAX maps over: numbers are leaves, choices are static.

So a sweep over a number compiles once, and another choice, or another class of the same name, is
another program.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, dataclass_transform, get_type_hints

import jax

from llada_jax.config import SamplerConfig


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Policy:
    """A rule or a window. A subclass that names the flat settings which choose it, as
    `class Wino(RevisingRule, accept="wino")` does, is one by `policy`."""

    chosen_by: ClassVar[Mapping[str, Any]]
    """The flat settings that name the policy."""

    def __init_subclass__(cls, **chosen_by: Any) -> None:
        if chosen_by:
            policy(cls, **chosen_by)


def policy(cls: Any, **chosen_by: Any) -> Any:
    """Makes a class a frozen dataclass and a pytree, whose leaves are its fields of type `float` or
    `float | None`."""
    made = dataclass(frozen=True, kw_only=True)(cls)
    made.chosen_by = chosen_by
    hints = get_type_hints(made)
    names = (each.name for each in fields(made))
    _register(made, [name for name in names if hints[name] in (float, float | None)])
    return made


def _register(cls: Any, leaves: Sequence[str]) -> None:
    """Registers a class as `jax.tree_util.register_dataclass` does, but rebuilds values without
    checking them again: in a program, leaves are no numbers that could be compared."""
    rest = [each.name for each in fields(cls) if each.name not in leaves]

    def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(value, n) for n in leaves], tuple(getattr(value, n) for n in rest)

    def unflatten(static: tuple[Any, ...], numbers: Sequence[Any]) -> Any:
        value = object.__new__(cls)
        for name, each in (*zip(leaves, numbers, strict=True), *zip(rest, static, strict=True)):
            object.__setattr__(value, name, each)
        return value

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)


_register(SamplerConfig, ("rule", "window"))
