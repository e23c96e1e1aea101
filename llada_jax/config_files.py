"""Reads YAML configurations, from the package or the user, into checked dataclasses.

The dataclasses are the schema: their fields are plain values, choices (`Literal`), tuples and other
dataclasses. Files may come from strangers, so the events of the YAML parser are checked for size,
depth, aliases and repeated keys before any object is built. Every error names the key, its value
and what is allowed.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from llada_jax.config import require, require_choice

T = TypeVar("T")

_MAX_BYTES = 1 << 20
_LIMITS = {"values": 100_000, "levels": 32, "characters": 10_000}  # characters of one text
_ALLOWED = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}


def find_yaml(what: str, folder: Path, name_or_path: str | PathLike[str]) -> Path:
    """Returns the file in `folder` with this name in any case, or else the file at this path.

    Raises ValueError that lists the names if there is neither.
    """
    files = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    for name, file in files.items():
        if name.casefold() == str(name_or_path).casefold():
            return file
    path = Path(name_or_path)
    require(
        path.suffix in (".yaml", ".yml") and path.is_file(),
        f"{what} is {str(name_or_path)!r}; allowed: {', '.join(files)}, or a YAML file's path",
    )
    return path


def read_yaml(path: Path) -> Mapping[str, Any]:
    """Reads a mapping. Raises ValueError that names the file if it contains something else."""
    content = parse_yaml(path)
    require(isinstance(content, Mapping), f"{path} is {content!r:.60}; allowed: a mapping")
    return content


def parse_yaml(path: Path) -> Any:
    """Reads any content. Raises ValueError that names the file if it is not YAML, or larger or
    deeper than settings can be."""
    try:
        size = path.stat().st_size
        require(size <= _MAX_BYTES, f"it has {size:,} bytes; allowed: up to {_MAX_BYTES:,}")
        return deepcopy(_parsed(path.read_text(encoding="utf-8")))  # callers may modify the result
    except ValueError as error:
        raise ValueError(f"{path} is no YAML: {error}") from error


@cache
def _parsed(text: str) -> Any:
    import yaml

    # The C loader takes a tenth of the time, if PyYAML was built with it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml.parse(text, loader))
        return yaml.load(text, loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


@dataclass
class _Open:
    """A mapping or sequence that is not closed yet, and its size so far."""

    anchor: str | None = None
    values: int = 1
    levels: int = 1
    keys: set[str] | None = None
    """Keys of a mapping; every other member is a key."""
    members: int = 0


def _check_events(events: Iterable[Any]) -> None:
    """Raises ValueError for content that could exhaust time or memory (aliases count as their
    content). Also for tags, because PyYAML does not check their values, and for repeated keys, of
    which PyYAML would silently keep the last."""
    known: dict[str | None, tuple[int, int]] = {}
    open_nodes = [_Open()]
    for event in events:
        kind, line = type(event).__name__, f"line {event.start_mark.line + 1}"
        anchor, values, levels = getattr(event, "anchor", None), 1, 1
        tag, text = getattr(event, "tag", None), getattr(event, "value", None)
        require(tag is None, f"{line} has the tag {tag!r:.80}; allowed: values without tags")
        keys = open_nodes[-1].keys
        if keys is not None and not kind.endswith("EndEvent"):
            if open_nodes[-1].members % 2 == 0 and text is not None:
                require(text not in keys, f"{line} repeats {text!r:.60}; allowed: each key once")
                keys.add(text)
            open_nodes[-1].members += 1
        if kind.endswith("StartEvent"):
            open_nodes.append(_Open(anchor, keys=set() if kind == "MappingStartEvent" else None))
        elif kind == "AliasEvent":
            require(anchor in known, f"{line} has an alias of what it is in; allowed: other values")
            values, levels = known[anchor]
        elif kind.endswith("EndEvent"):
            done = open_nodes.pop()
            anchor, values, levels = done.anchor, done.values, done.levels
        if not kind.endswith("StartEvent"):
            known[anchor] = values, levels
            open_nodes[-1].values += values
            open_nodes[-1].levels = max(open_nodes[-1].levels, levels + 1)
        counts = open_nodes[-1].values, len(open_nodes) + levels, len(text or "")
        for (name, limit), count in zip(_LIMITS.items(), counts, strict=True):
            require(count <= limit, f"{line} makes {count:,} {name}; allowed: up to {limit:,}")


def checked_dataclass(schema: type[T], values: Any) -> T:
    """Converts a mapping to a dataclass, with all nested sections.

    Raises ValueError, with the full name of the key and what is allowed, for an unknown or missing
    key, a value of the wrong type, and values that the dataclasses themselves refuse.
    """
    return _section(schema, values, "")


def _section(schema: Any, values: Any, path: str) -> Any:
    require(isinstance(values, Mapping), f"{path} is {values!r}; allowed: a section of settings")
    prefix = f"{path}." if path else ""
    flat = getattr(schema, "setting_types", None)  # for samplers: settings depend on policies
    policies = [values.get(name) for name in ("accept", "window", "drafter")]
    hints = flat(*policies) if flat else get_type_hints(schema)
    names = list(hints) if flat else [field.name for field in fields(schema)]
    for key in values:
        close = get_close_matches(str(key), names, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        require(key in names, f"{prefix}{key} is no setting; allowed: {', '.join(names)}{hint}")
    for field in () if flat else fields(schema):
        optional = field.default is not MISSING or field.default_factory is not MISSING
        require(optional or field.name in values, f"{prefix}{field.name} is missing")
    checked = {key: _checked(hints[key], value, prefix + key) for key, value in values.items()}
    try:
        return schema.from_flat(checked) if flat else schema(**checked)
    except ValueError as error:
        raise ValueError(f"{path}: {error}" if path else str(error)) from error


def _checked(hint: Any, value: Any, name: str) -> Any:
    if isinstance(value, str) and hasattr(hint, "named"):
        return hint.named(value)
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
