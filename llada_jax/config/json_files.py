"""JSON that others wrote: what is wrong with it is named by where it stands."""

import json
from pathlib import Path
from typing import Any

from llada_jax.config.checks import require, shortened


def parse_json(content: str | bytes, wrong: str, allowed: str) -> Any:
    """Returns what a text says. Raises ValueError, which begins with `wrong`, for what is no JSON,
    and for a key that stands in an object twice."""
    try:
        return json.loads(content, object_pairs_hook=_with_each_key_once)
    except (ValueError, RecursionError) as error:  # the latter: as deep as Python goes
        raise ValueError(shortened(f"{wrong}: {error}; allowed: {allowed}")) from error


def read_object(path: Path, wrong: str = "is no JSON") -> dict[str, Any]:
    """Returns the object that a file holds. Raises ValueError that names the file and says that it
    is `wrong`, as `parse_json`, and for another value."""
    allowed = "one JSON object"
    found = parse_json(path.read_bytes(), f"{path} {wrong}", allowed)
    require(isinstance(found, dict), f"{path} {wrong}: it has {found!r:.60}; allowed: {allowed}")
    return found


def _with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        require(key not in found, f"{key!r} stands there twice")
        found[key] = value
    return found
