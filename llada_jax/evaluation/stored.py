"""Reads JSON files of a run; errors about damaged content name the file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llada_jax.config import parse_json, require

Keys = Mapping[str, type | tuple[type, ...]]
"""Required keys of an object, with the allowed types of their values."""
_ALLOWED = "the file as it was written"


def stored_text(path: Path) -> str:
    """Reads a text. Raises ValueError if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}; allowed: {_ALLOWED}") from error


def parsed(text: str | bytes, path: Path) -> Any:
    """Parses a text of `path` as JSON. Raises ValueError if it is invalid."""
    return parse_json(text, f"{path} is damaged", _ALLOWED)


def require_object(value: Any, path: Path, keys: Keys) -> dict[str, Any]:
    """Returns a value read from `path`. Raises ValueError if it is no object with these keys."""
    require(
        isinstance(value, dict), f"{path} is damaged: it has {repr(value)[:60]}; allowed: an object"
    )
    for key, kinds in keys.items():
        require(
            type(value.get(key, ...)) in (kinds if isinstance(kinds, tuple) else (kinds,)),
            f"{path} is damaged: {key} is {value.get(key, 'absent')!r}; allowed: {_ALLOWED}",
        )
    return value


def stored_object(path: Path, keys: Keys) -> dict[str, Any]:
    """Reads a file that is one object with at least these keys."""
    return require_object(parsed(path.read_bytes(), path), path, keys)


def stored_in_format(path: Path, version: int, keys: Keys) -> dict[str, Any]:
    """Reads a file that is one object with these keys. Raises ValueError for another format."""
    stored = stored_object(path, {"format": int})
    require(
        stored["format"] == version,
        f"{path} has format {stored['format']!r}; allowed: {version}, the one of this version",
    )
    return require_object(stored, path, keys)


def first_difference(theirs: Any, ours: Any, name: str = "") -> str | None:
    """Returns a text such as `sampler.threshold is 0.9 there and 0.8 here`, or None if equal."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = sorted({*theirs, *ours})
        pairs = [(f"{name}.{key}".lstrip("."), theirs.get(key), ours.get(key)) for key in keys]
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        both = zip(theirs, ours, strict=True)
        pairs = [(f"{name}[{index}]", *pair) for index, pair in enumerate(both)]
    else:
        return None if theirs == ours else f"{name} is {theirs!r} there and {ours!r} here"
    differences = (first_difference(old, new, inner) for inner, old, new in pairs)
    return next(filter(None, differences), None)
