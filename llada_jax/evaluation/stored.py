"""JSON that a run stored, read back: what is damaged is named by its file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llada_jax.config import require

Keys = Mapping[str, type | tuple[type, ...]]
"""What an object must have, and of which types."""
_ALLOWED = "allowed: the file as it was written"


def stored_text(path: Path) -> str:
    """Raises ValueError for what is no UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}; {_ALLOWED}") from error


def parsed(text: str, path: Path) -> Any:
    """A text of `path` as JSON. Raises ValueError for what is none."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}; {_ALLOWED}") from error


def parsed_object(text: str, path: Path, keys: Keys) -> dict[str, Any]:
    """As `parsed`; an object with these keys, and maybe others."""
    return require_object(parsed(text, path), path, keys)


def require_object(found: Any, path: Path, keys: Keys) -> dict[str, Any]:
    """What was read from `path`, if it is an object with these keys; ValueError otherwise."""
    shown = repr(found)[:60]
    require(isinstance(found, dict), f"{path} is damaged: it has {shown}; allowed: an object")
    for key, kinds in keys.items():
        require(
            key in found and isinstance(found[key], kinds),
            f"{path} is damaged: {key} is {found.get(key, 'absent')!r}; {_ALLOWED}",
        )
    return found


def stored_object(path: Path, keys: Keys) -> dict[str, Any]:
    """A file that is one object with these keys."""
    return parsed_object(stored_text(path), path, keys)
