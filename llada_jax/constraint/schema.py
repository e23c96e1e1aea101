"""Translates JSON schemas to regular expressions; every match is JSON that conforms to the schema.

The schema is first copied as plain JSON of bounded depth and size. Then the patterns of its parts
are joined from the leaves up. Two tables define the supported subset: `_KEYWORDS` has the allowed
values of each keyword, `_FORMS` and `_TYPES` the keywords that a part may have. Any other keyword
is an error, because the pattern would not guarantee it. Errors name a location in the schema, such
as `$.properties.age.enum`.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from llada_jax.config import parse_json, require

MAX_DEPTH = 8
MAX_LEVELS = 150
"""Maximum nesting of schemas; a level takes up to four of Python's 1000 stack frames."""
MAX_SIZE = 1 << 20
"""Maximum number of values in a schema, plus characters of its texts."""
MAX_CHARACTERS = 1 << 18
"""Maximum number of characters in the patterns of all parts."""
_MAX_COUNT = 1 << 14  # items or characters; each is at least one state of the automaton
_CHARACTER = r'(?:[^"\\\x00-\x1F\x7F-\x9F]|\\["\\/bfnrt])'
_INTEGER = r"(?:0|[1-9][0-9]*)"


class _Type(NamedTuple):
    matches: Callable[[Any], bool]
    keywords: tuple[str, ...] = ()


_TYPES = {
    "object": _Type(lambda value: isinstance(value, dict), ("properties", "required")),
    "array": _Type(lambda value: isinstance(value, list), ("items", "minItems", "maxItems")),
    "string": _Type(lambda value: isinstance(value, str), ("minLength", "maxLength")),
    "integer": _Type(lambda value: type(value) is int, ("minimum",)),
    "number": _Type(lambda value: type(value) in (int, float), ("minimum",)),
    "boolean": _Type(lambda value: isinstance(value, bool)),
    "null": _Type(lambda value: value is None),
}
_FORMS = {"$ref": (), "const": ("type",), "enum": ("type",), "anyOf": ()}
"""Keywords that define a part, and keywords allowed with them. Parts without one have a `type`."""
_ABOUT = {"$schema", "$id", "$defs", "definitions", "title", "description", "default", "examples"}
_ABOUT |= {"additionalProperties"}  # ignored: texts never have additional properties


class _Keyword(NamedTuple):
    allowed: str
    fits: Callable[[Any], bool]


def _list_of(fits: Callable[[Any], bool], least: int = 1) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(fits, value))


def _is_type(value: Any) -> bool:
    return isinstance(value, str) and value in _TYPES


_OBJECT = _Keyword("an object", _TYPES["object"].matches)
_COUNT = _Keyword(
    f"a whole number from 0 to {_MAX_COUNT}",
    lambda value: type(value) is int and 0 <= value <= _MAX_COUNT,
)
_KEYWORDS = {
    "$ref": _Keyword(
        "'#/$defs/...'", lambda value: isinstance(value, str) and value.startswith("#")
    ),
    "const": _Keyword("a JSON value", lambda value: True),
    "enum": _Keyword("a list of one JSON value or more", _list_of(lambda value: True)),
    "anyOf": _Keyword("a list of one schema or more", _list_of(_OBJECT.fits)),
    "type": _Keyword(
        f"{', '.join(_TYPES)}, or a list of them",
        lambda value: _is_type(value) or _list_of(_is_type)(value),
    ),
    "properties": _Keyword("an object of schemas", _OBJECT.fits),
    "required": _Keyword("a list of names", _list_of(_TYPES["string"].matches, 0)),
    "items": _Keyword("a schema", _OBJECT.fits),
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), _COUNT),
    "minimum": _Keyword("0", lambda value: _TYPES["number"].matches(value) and value == 0),
    "$defs": _OBJECT,
    "definitions": _OBJECT,
    "additionalProperties": _Keyword(
        "true, false or a schema", lambda value: isinstance(value, bool | dict)
    ),
}


def schema_pattern(schema: Mapping[str, Any] | str, depth: int, spaces: bool | None) -> str:
    """Returns the regular expression of a schema's texts; arguments and errors as `json_schema`.

    The texts of a recursive schema are those in which each definition is nested in itself less
    than `depth` times.
    """
    require(
        type(depth) is int and 1 <= depth <= MAX_DEPTH,
        f"depth is {depth!r}; allowed: 1 to {MAX_DEPTH}",
    )
    if isinstance(schema, str):
        schema = parse_json(schema, "schema is no JSON", "a JSON object")
    require(spaces in (True, False, None), f"spaces is {spaces!r}; allowed: true, false, or None")
    gap = " ?" if spaces is None else " " * spaces
    builder = _Schema(schema, depth, gap)
    pattern = builder.pattern(builder.root, "$", ())
    if pattern is None:
        raise ValueError(
            f"schema has no text in which a definition is nested less than {depth} times in "
            f"itself; allowed: a depth up to {MAX_DEPTH}, and definitions that end"
        )
    return pattern


class _Schema:
    """Builds the patterns of a schema's parts. Methods get a part, its location `at`, and the
    references `within` which it is, and return None if no text of the part fits in the depth."""

    def __init__(self, schema: Any, depth: int, gap: str) -> None:
        self.depth, self.gap = depth, gap
        self.size = self.characters = self.level = 0
        self.root = self._copy(schema, "$", 0)
        self.of_type: dict[str, Callable[..., str | None]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": self._integer,
            "number": self._number,
            "boolean": lambda *_: "(?:true|false)",
            "null": lambda *_: "null",
        }

    def _copy(self, value: Any, at: str, level: int) -> Any:
        """Returns a value as `json.loads` would. Raises ValueError for values that JSON does not
        have, and for too many levels or values, which includes values that contain themselves."""
        self.size += 1 + (len(value) if isinstance(value, str) else 0)
        require(
            level <= 2 * MAX_LEVELS and self.size <= MAX_SIZE,
            f"schema: {at} is at level {level}, after {self.size} values and characters; allowed: "
            f"up to {2 * MAX_LEVELS} levels, {MAX_SIZE} values and characters",
        )
        if isinstance(value, Mapping):
            members = {}
            for name, inner in value.items():
                require(isinstance(name, str), f"schema: {at} has the name {name!r}; allowed: text")
                location = _below(at, name)
                key = self._copy(name, location, level)
                members[key] = self._copy(inner, location, level + 1)
            return members
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            items = []  # not a comprehension, which takes a second stack frame for each level
            for i, inner in enumerate(value):
                items.append(self._copy(inner, f"{at}[{i}]", level + 1))
            return items
        if isinstance(value, int) and value.bit_length() > 1024:  # Python may refuse to print it
            raise ValueError(f"schema: {at} has {value.bit_length()} bits; allowed: up to 1024")
        if isinstance(value, str):
            is_json = re.search("[\ud800-\udfff]", value) is None  # surrogates are not UTF-8
        elif isinstance(value, float):
            is_json = math.isfinite(value)
        else:
            is_json = value is None or isinstance(value, int)
        require(is_json, f"schema: {at} is {value!r:.80}; allowed: a JSON value")
        return value

    def pattern(self, part: Any, at: str, within: tuple[str, ...]) -> str | None:
        """Returns the pattern of a part."""
        self.level += 1
        require(
            self.level <= MAX_LEVELS,
            f"schema: {at} is nested in {MAX_LEVELS} parts; allowed: up to {MAX_LEVELS - 1}",
        )
        pattern = self._part_pattern(part, at, within)
        self.level -= 1
        self.characters += 16 if pattern is None else len(pattern)  # None has taken time as well
        _require_short(self.characters, at)
        return pattern

    def _part_pattern(self, part: Any, at: str, within: tuple[str, ...]) -> str | None:
        _check(_OBJECT, part, at)
        for name, value in part.items():
            if name in _KEYWORDS:
                _check(_KEYWORDS[name], value, _below(at, name))
        form = next((name for name in _FORMS if name in part), "type")
        require(
            form in part,
            f"schema: {at} has keywords {list(part)}; allowed: one of type, {', '.join(_FORMS)}",
        )
        kinds = part.get("type", [])
        kinds = kinds if isinstance(kinds, list) else [kinds]
        of_kinds = {name for kind in kinds for name in _TYPES[kind].keywords}
        allowed = {form, *_FORMS.get(form, of_kinds)}
        for name in sorted(part.keys() - allowed - _ABOUT):
            raise ValueError(
                f"schema: {_below(at, name)} is {part[name]!r:.80}, which would not be guaranteed; "
                f"allowed at {at}: {', '.join(sorted(allowed))}"
            )
        if form == "$ref":
            return self._reference(part["$ref"], at, within)
        if form == "anyOf":
            options = enumerate(part["anyOf"])
            patterns = [self.pattern(value, f"{at}.anyOf[{i}]", within) for i, value in options]
            return _any_of(patterns)
        if form == "type":
            return _any_of([self.of_type[kind](part, at, within) for kind in kinds])
        values = part["enum"] if form == "enum" else [part["const"]]
        for value in values:
            fits = not kinds or any(_TYPES[kind].matches(value) for kind in kinds)
            require(fits, f"schema: {at}.{form} has {value!r:.80}; allowed: {', '.join(kinds)}")
        return _any_of([_literal(value) for value in values])

    def _reference(self, reference: str, at: str, within: tuple[str, ...]) -> str | None:
        if within.count(reference) >= self.depth:
            return None
        part, location = self.root, "$"
        for name in filter(None, reference[1:].split("/")):
            require(
                isinstance(part, dict) and name in part,
                f"schema: {at}.$ref is {reference!r}; allowed: what the schema defines",
            )
            part, location = part[name], _below(location, name)
        return self.pattern(part, location, (*within, reference))

    def _object(self, part: Any, at: str, within: tuple[str, ...]) -> str | None:
        properties, required = part.get("properties", {}), set(part.get("required", ()))
        missing = sorted(required - properties.keys())
        require(
            not missing,
            f"schema: {at}.required has {missing}; allowed: names among its properties",
        )
        # Patterns of the remaining members: `first` if no member precedes them, else `later`.
        first, later = "", ""
        for name, value in reversed(properties.items()):
            pattern = self.pattern(value, _below(f"{at}.properties", name), within)
            if pattern is None:
                if name in required:
                    return None
                continue
            member = f"{_literal(name)}:{self.gap}{pattern}"
            after = f",{self.gap}{member}"
            if name in required:
                first, later = f"{member}{later}", f"{after}{later}"
            else:
                first, later = f"(?:{member}{later}|{first})", f"(?:{after})?{later}"
            _require_short(len(first), at)  # doubles, since each optional member may come first
        return rf"\{{{first}\}}"

    def _array(self, part: Any, at: str, within: tuple[str, ...]) -> str | None:
        least, most = _bounds(part, "minItems", "maxItems", at)
        require("items" in part, f"schema: {at} has no items; allowed: a schema for them")
        item = self.pattern(part["items"], f"{at}.items", within)
        if most == 0 or item is None:
            return r"\[\]" if least == 0 else None
        upper = "" if most is None else most - 1
        some = f"{item}(?:,{self.gap}{item}){{{max(0, least - 1)},{upper}}}"
        return rf"\[(?:{some})?\]" if least == 0 else rf"\[{some}\]"

    def _string(self, part: Any, at: str, within: tuple[str, ...]) -> str:
        least, most = _bounds(part, "minLength", "maxLength", at)
        return f'"{_CHARACTER}{{{least},{"" if most is None else most}}}"'

    def _integer(self, part: Any, at: str, within: tuple[str, ...]) -> str:
        return _INTEGER if "minimum" in part else f"-?{_INTEGER}"

    def _number(self, part: Any, at: str, within: tuple[str, ...]) -> str:
        return rf"{self._integer(part, at, within)}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"


def _check(keyword: _Keyword, value: Any, at: str) -> None:
    if not keyword.fits(value):  # not `require`, because printing a large value takes long
        raise ValueError(f"schema: {at} is {value!r:.80}; allowed: {keyword.allowed}")


def _below(at: str, name: str) -> str:
    return f"{at}.{name}" if name.isprintable() else f"{at}.{name!r}"


def _require_short(characters: int, at: str) -> None:
    require(
        characters <= MAX_CHARACTERS,
        f"schema: the pattern up to {at} has {characters} characters; allowed: up to "
        f"{MAX_CHARACTERS}, as less depth or fewer parts have",
    )


def _any_of(patterns: list[str | None]) -> str | None:
    possible = [pattern for pattern in patterns if pattern is not None]
    return possible[0] if len(possible) == 1 else f"(?:{'|'.join(possible)})" if possible else None


def _literal(value: Any) -> str:
    return re.escape(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _bounds(part: Any, least: str, most: str, at: str) -> tuple[int, int | None]:
    low, high = part.get(least, 0), part.get(most)
    require(
        high is None or low <= high,
        f"schema: {at}.{most} is {high!r}; allowed: {least} ({low!r}) or more",
    )
    return low, high
