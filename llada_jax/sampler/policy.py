"""Policies, which are rules and windows, as values that JAX maps over.

Fields of type `float` are leaves of the pytree: a sweep over such a number compiles once. All other
fields are static: another choice, or another class of the same name, is another program.
"""

import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, get_type_hints

import jax


class Policy:
    """A rule or a window: a frozen dataclass and a pytree."""

    name: ClassVar[str]
    """How configurations spell it: `threshold`, or `module:Class` for a custom one."""
    source_hash: ClassVar[str | None] = None
    """SHA-256 of a custom policy's source, which traces record."""


def make_policy(cls: type, base: type[Policy], name: str | None) -> Any:
    """Makes a class a policy, whether or not it names the base class.

    A class without a name is custom, and its name is its import path.
    """
    made: Any = cls
    if not issubclass(cls, base):
        bases = tuple(parent for parent in cls.__bases__ if parent is not object)
        body = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
        made = type(cls.__name__, (*bases, base), body)
    made = dataclass(frozen=True, kw_only=True)(made)
    made.name = name or f"{cls.__module__}:{cls.__qualname__}"
    made.source_hash = None if name else _source_hash(cls)
    hints = get_type_hints(made)
    numbers = [field.name for field in fields(made) if hints[field.name] in (float, float | None)]
    register_unchecked(made, numbers)
    return made


def _source_hash(cls: type) -> str | None:
    try:
        return hashlib.sha256(inspect.getsource(cls).encode()).hexdigest()
    except (OSError, TypeError):  # typed into an interpreter that keeps no source
        return None


def register_unchecked(cls: Any, leaves: Sequence[str]) -> None:
    """Registers a dataclass as a pytree that is rebuilt without running its checks.

    `jax.tree_util.register_dataclass` would run `__post_init__`, which cannot compare traced
    leaves.
    """
    static = [field.name for field in fields(cls) if field.name not in leaves]

    def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(value, n) for n in leaves], tuple(getattr(value, n) for n in static)

    def unflatten(statics: tuple[Any, ...], numbers: Sequence[Any]) -> Any:
        value = object.__new__(cls)
        for name, field in zip((*leaves, *static), (*numbers, *statics), strict=True):
            object.__setattr__(value, name, field)
        return value

    jax.tree_util.register_pytree_node(cls, flatten, unflatten)
