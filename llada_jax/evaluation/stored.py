"""JSON that a run stored, read back: what is damaged is named by its file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llada_jax.config import parse_json, require

Keys = Mapping[str, type | tuple[type, ...]]
"""What an object must have, and of which types."""
_ALLOWED = "the file as it was written"


def stored_text(path: Path) -> str:
    """Raises ValueError for what is no UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}; allowed: {_ALLOWED}") from error


def parsed(text: str | bytes, path: Path) -> Any:
    """Parses a text of `path` as JSON. Raises ValueError for what is none."""
    return parse_json(text, f"{path} is damaged", _ALLOWED)


def require_object(found: Any, path: Path, keys: Keys) -> dict[str, Any]:
    """Returns what was read from `path`. Raises ValueError unless it is an object of these keys."""
    shown = repr(found)[:60]
    require(isinstance(found, dict), f"{path} is damaged: it has {shown}; allowed: an object")
    for key, kinds in keys.items():
        require(
            type(found.get(key, ...)) in (kinds if isinstance(kinds, tuple) else (kinds,)),
            f"{path} is damaged: {key} is {found.get(key, 'absent')!r}; allowed: {_ALLOWED}",
        )
    return found


def stored_object(path: Path, keys: Keys) -> dict[str, Any]:
    """Reads a file that is one object with these keys, and maybe others."""
    return require_object(parsed(path.read_bytes(), path), path, keys)


def stored_in_format(path: Path, version: int, keys: Keys) -> dict[str, Any]:
    """Reads a file that is one object of this format, with these keys."""
    stored = stored_object(path, {"format": int})
    found, allowed = stored["format"], f"{version}, the one of this version"
    require(found == version, f"{path} has format {found!r}; allowed: {allowed}")
    return require_object(stored, path, keys)


def first_difference(theirs: Any, ours: Any, name: str = "") -> str | None:
    """Returns `sampler.threshold is 0.9 there and 0.8 here`, or None where both are alike."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = sorted({*theirs, *ours})
        pairs = [(f"{name}.{key}".lstrip("."), theirs.get(key), ours.get(key)) for key in keys]
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        both = zip(theirs, ours, strict=True)
        pairs = [(f"{name}[{index}]", *pair) for index, pair in enumerate(both)]
    else:
        return None if theirs == ours else f"{name} is {theirs!r} there and {ours!r} here"
    found = (first_difference(old, new, inner) for inner, old, new in pairs)
    return next((each for each in found if each), None)
