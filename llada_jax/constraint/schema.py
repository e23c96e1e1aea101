"""JSON schemas as regular expressions, of which every match is JSON of the schema."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llada_jax.config import parse_json, require

MOST_DEPTH = 8
MOST_CHARACTERS = 1 << 18
_CHARACTER = r'(?:[^"\\\x00-\x1F\x7F-\x9F]|\\["\\/bfnrt])'
_INTEGER = r"(?:0|[1-9][0-9]*)"
_ABOUT = frozenset({"$schema", "$id", "$defs", "definitions", "title", "description", "default"})
_ABOUT |= {"examples", "additionalProperties"}


def schema_pattern(schema: Mapping[str, Any] | str, depth: int, spaces: bool | None) -> str:
    """Returns the regular expression of a schema's texts; arguments and errors as `json_schema`.

    Of a recursive schema they are those in which each definition stands within itself less than
    `depth` times.
    """
    require(
        type(depth) is int and 1 <= depth <= MOST_DEPTH,
        f"depth is {depth!r}; allowed: 1 to {MOST_DEPTH}",
    )
    if isinstance(schema, str):
        schema = parse_json(schema, "schema is no JSON", "a JSON object")
    require(isinstance(schema, Mapping), f"schema is {schema!r}; allowed: a JSON object")
    require(spaces in (True, False, None), f"spaces is {spaces!r}; allowed: true, false, or None")
    gap = " ?" if spaces is None else " " * spaces
    pattern = _Schema(schema, depth, gap).pattern(schema, "#", ())
    if pattern is None:
        raise ValueError(
            f"schema has no text in which a definition stands less than {depth} times within "
            f"itself; allowed: a depth up to {MOST_DEPTH}, and definitions that end"
        )
    return pattern


class _Schema:
    """Patterns of the parts of a schema; None: no text of a part ends within the depth."""

    def __init__(self, root: Any, depth: int, gap: str) -> None:
        self.root, self.depth, self.gap, self.characters = root, depth, gap, 0
        self.kinds: dict[str, tuple[Callable[..., str | None], frozenset[str]]] = {
            "object": (self._object, frozenset({"properties", "required"})),
            "array": (self._array, frozenset({"items", "minItems", "maxItems"})),
            "string": (self._string, frozenset({"minLength", "maxLength"})),
            "integer": (self._number, frozenset({"minimum"})),
            "number": (self._number, frozenset({"minimum"})),
            "boolean": (lambda *_: "(?:true|false)", frozenset()),
            "null": (lambda *_: "null", frozenset()),
        }

    def pattern(self, part: Any, at: str, within: tuple[str, ...]) -> str | None:
        """Returns the pattern of a part, which stands at a place, within definitions."""
        require(isinstance(part, Mapping), f"schema at {at} is {part!r}; allowed: an object")
        found = self._of_part(part, at, within)
        self.characters += len(found or "")
        require(
            self.characters <= MOST_CHARACTERS,
            f"schema at {at}: its pattern is longer than {MOST_CHARACTERS} characters; allowed: "
            "less depth, or fewer parts",
        )
        return found

    def _of_part(self, part: Mapping[str, Any], at: str, within: tuple[str, ...]) -> str | None:
        if "$ref" in part:
            self._require_known(part, {"$ref"}, at)
            return self._referred(part["$ref"], at, within)
        if "const" in part or "enum" in part:
            self._require_known(part, {"const" if "const" in part else "enum", "type"}, at)
            values = [part["const"]] if "const" in part else part["enum"]
            wrong = [value for value in values if not _is(value, part.get("type"))]
            require(not wrong, f"schema at {at} has values {wrong}; allowed: those of its type")
            return _any_of(_literal(value) for value in values)
        if "anyOf" in part:
            self._require_known(part, {"anyOf"}, at)
            options = enumerate(part["anyOf"])
            return _any_of(self.pattern(each, f"{at}/anyOf/{i}", within) for i, each in options)
        kinds = part.get("type")
        kinds = kinds if isinstance(kinds, Sequence) and not isinstance(kinds, str) else [kinds]
        for kind in kinds:
            require(
                kind in self.kinds,
                f"schema at {at} has type {kind!r}; allowed: {', '.join(self.kinds)}, or $ref, "
                "const, enum or anyOf",
            )
        self._require_known(part, {"type"}.union(*(self.kinds[str(kind)][1] for kind in kinds)), at)
        return _any_of(self.kinds[kind][0](part, at, within, kind) for kind in map(str, kinds))

    def _require_known(self, part: Mapping[str, Any], known: set[str], at: str) -> None:
        unknown = sorted(set(part) - known - _ABOUT)
        require(
            not unknown,
            f"schema at {at} has {', '.join(unknown)}, which would not be guaranteed; allowed: "
            f"{', '.join(sorted(known))}",
        )

    def _referred(self, reference: Any, at: str, within: tuple[str, ...]) -> str | None:
        require(
            isinstance(reference, str) and reference.startswith("#"),
            f"schema at {at} refers to {reference!r}; allowed: '#/$defs/...'",
        )
        if within.count(reference) >= self.depth:
            return None
        part = self.root
        for name in filter(None, reference[1:].split("/")):
            require(
                isinstance(part, Mapping) and name in part,
                f"schema at {at} refers to {reference!r}; allowed: what the schema defines",
            )
            part = part[name]
        return self.pattern(part, reference, (*within, reference))

    def _object(self, part: Any, at: str, within: tuple[str, ...], kind: str) -> str | None:
        properties, required = part.get("properties", {}), part.get("required", ())
        missing = sorted(set(required) - set(properties))
        require(
            not missing, f"schema at {at} requires {missing}; allowed: what its properties define"
        )
        first, later = "", ""  # patterns of the members from one on, where none is before, or some
        for name, value in reversed(properties.items()):
            found = self.pattern(value, f"{at}/properties/{name}", within)
            if found is None:
                if name in required:
                    return None
                continue
            member = f"{_literal(name)}:{self.gap}{found}"
            after = f",{self.gap}{member}"
            if name in required:
                first, later = f"{member}{later}", f"{after}{later}"
            else:
                first, later = f"(?:{member}{later}|{first})", f"(?:{after})?{later}"
        return rf"\{{{first}\}}"

    def _array(self, part: Any, at: str, within: tuple[str, ...], kind: str) -> str | None:
        least, most = _bounds(part, "minItems", "maxItems", at)
        require("items" in part, f"schema at {at} has no items; allowed: a schema for them")
        item = self.pattern(part["items"], f"{at}/items", within)
        if most == 0 or item is None:
            return r"\[\]" if least == 0 else None
        upper = "" if most is None else most - 1
        some = f"{item}(?:,{self.gap}{item}){{{max(0, least - 1)},{upper}}}"
        return rf"\[(?:{some})?\]" if least == 0 else rf"\[{some}\]"

    def _string(self, part: Any, at: str, within: tuple[str, ...], kind: str) -> str:
        least, most = _bounds(part, "minLength", "maxLength", at)
        return f'"{_CHARACTER}{{{least},{"" if most is None else most}}}"'

    def _number(self, part: Any, at: str, within: tuple[str, ...], kind: str) -> str:
        require(
            part.get("minimum", 0) == 0,
            f"schema at {at} has minimum {part.get('minimum')!r}; allowed: 0, or none",
        )
        whole = _INTEGER if "minimum" in part else f"-?{_INTEGER}"
        return whole if kind == "integer" else rf"{whole}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"


def _any_of(patterns: Any) -> str | None:
    found = [each for each in patterns if each is not None]
    return found[0] if len(found) == 1 else f"(?:{'|'.join(found)})" if found else None


def _is(value: Any, kind: Any) -> bool:
    types = {"string": str, "integer": int, "number": int | float, "boolean": bool}
    if kind is None or (kind == "null" and value is None):
        return True
    return isinstance(value, types.get(kind, ())) and isinstance(value, bool) == (kind == "boolean")


def _literal(value: Any) -> str:
    return re.escape(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _bounds(part: Any, least: str, most: str, at: str) -> tuple[int, int | None]:
    low, high = part.get(least, 0), part.get(most)
    bounds = [low] if high is None else [low, high]
    whole = all(type(each) is int and each >= 0 for each in bounds)
    require(
        whole and bounds == sorted(bounds),
        f"schema at {at} has {least} {low!r} and {most} {high!r}; allowed: whole numbers that "
        "ascend",
    )
    return low, high
