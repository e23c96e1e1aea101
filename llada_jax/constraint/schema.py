"""Translates JSON schemas to expressions; every text of one is JSON that conforms to the schema.

The schema is first copied as plain JSON of bounded depth and size. Then the expressions of its
parts are joined from the leaves up. Two tables define the supported subset: `_KEYWORDS` has the
allowed values of each keyword, `_FORMS` and `_TYPES` the keywords that a part may have. Any other
keyword is an error, because the texts would not be guaranteed to follow it. Errors name a location
in the schema, such as `$.properties.age.enum`.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import combinations
from typing import Any, NamedTuple

from llada_jax.config import parse_json, require
from llada_jax.constraint.expression import (
    EMPTY,
    Concat,
    Items,
    Members,
    Node,
    Repeat,
    Union,
    lengths,
    literal,
    parse_search,
    with_length,
)
from llada_jax.constraint.json_text import (
    FORMATS,
    Bounds,
    any_string,
    format_node,
    number_node,
    quoted,
    value_node,
)

MAX_DEPTH = 8
MAX_LEVELS = 150
"""Maximum nesting of schemas; a level takes up to five of Python's 1000 stack frames."""
MAX_SIZE = 1 << 20
"""Maximum number of values in a schema, plus characters of its texts."""
MAX_PARTS = 1 << 14
"""Maximum number of parts; a part counts each time that it is referred to."""
_MAX_COUNT = 1 << 14  # items or characters
_MAX_BOUND = 10**30


class JsonSchema(NamedTuple):
    """A checked schema as JSON, and the options of its texts."""

    schema: str
    depth: int
    spaces: bool | None


class _Type(NamedTuple):
    matches: Callable[[Any], bool]
    keywords: tuple[str, ...] = ()


_RANGE = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_TYPES = {
    "object": _Type(lambda value: isinstance(value, dict), ("properties", "required")),
    "array": _Type(lambda value: isinstance(value, list), ("items", "minItems", "maxItems")),
    "string": _Type(
        lambda value: isinstance(value, str), ("minLength", "maxLength", "pattern", "format")
    ),
    "integer": _Type(lambda value: type(value) is int, _RANGE),
    "number": _Type(lambda value: type(value) in (int, float), _RANGE),
    "boolean": _Type(lambda value: isinstance(value, bool)),
    "null": _Type(lambda value: value is None),
}
_FORMS = {"$ref": (), "const": ("type",), "enum": ("type",), "anyOf": (), "oneOf": ()}
"""Keywords that define a part, and keywords allowed with them. Parts without one have a `type`."""
_ABOUT = {"$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default"}
_ABOUT |= {"examples", "deprecated", "readOnly", "writeOnly"}
_ABOUT |= {"additionalProperties"}  # with properties, texts never have additional ones


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
_BOUND = _Keyword(
    "a number from -1e30 to 1e30",
    lambda value: _TYPES["number"].matches(value) and abs(value) <= _MAX_BOUND,
)
_KEYWORDS = {
    "$ref": _Keyword(
        "'#/$defs/...'", lambda value: isinstance(value, str) and value.startswith("#")
    ),
    "const": _Keyword("a JSON value", lambda value: True),
    "enum": _Keyword("a list of one JSON value or more", _list_of(lambda value: True)),
    **dict.fromkeys(
        ("anyOf", "oneOf"), _Keyword("a list of one schema or more", _list_of(_OBJECT.fits))
    ),
    "type": _Keyword(
        f"{', '.join(_TYPES)}, or a list of them",
        lambda value: _is_type(value) or _list_of(_is_type)(value),
    ),
    "properties": _Keyword("an object of schemas", _OBJECT.fits),
    "required": _Keyword("a list of names", _list_of(_TYPES["string"].matches, 0)),
    "items": _Keyword("a schema", _OBJECT.fits),
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), _COUNT),
    **dict.fromkeys(_RANGE, _BOUND),
    "pattern": _Keyword("a regular expression", _TYPES["string"].matches),
    "format": _Keyword(
        ", ".join(FORMATS), lambda value: isinstance(value, str) and value in FORMATS
    ),
    "$defs": _OBJECT,
    "definitions": _OBJECT,
    "additionalProperties": _Keyword(
        "true, false or a schema", lambda value: isinstance(value, bool | dict)
    ),
}


def json_schema_of(schema: Mapping[str, Any] | str, depth: int, spaces: bool | None) -> JsonSchema:
    """Returns a schema as text; arguments and errors as `patterns.json_schema`."""
    require(
        type(depth) is int and 1 <= depth <= MAX_DEPTH,
        f"depth is {depth!r}; allowed: 1 to {MAX_DEPTH}",
    )
    if isinstance(schema, str):
        schema = parse_json(schema, "schema is no JSON", "a JSON object")
    require(spaces in (True, False, None), f"spaces is {spaces!r}; allowed: true, false, or None")
    return JsonSchema(json.dumps(_Copy().value(schema, "$", 0), ensure_ascii=False), depth, spaces)


def schema_node(schema: JsonSchema) -> Node:
    """Returns the expression of a schema's texts; errors as `patterns.json_schema`.

    The texts of a recursive schema are those in which each definition is nested in itself less
    than `depth` times.
    """
    depth = schema.depth
    gap = " ?" if schema.spaces is None else " " * schema.spaces
    builder = _Schema(json.loads(schema.schema), depth, gap)
    node = builder.node(builder.root, "$", ())
    if node is None:
        raise ValueError(
            f"schema has no text in which a definition is nested less than {depth} times in "
            f"itself; allowed: a depth up to {MAX_DEPTH}, and definitions that end"
        )
    return node


class _Copy:
    """Copies a schema as plain JSON of bounded size."""

    size = 0

    def value(self, value: Any, at: str, level: int) -> Any:
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
                key = self.value(name, location, level)
                members[key] = self.value(inner, location, level + 1)
            return members
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            items = []  # not a comprehension, which takes a second stack frame for each level
            for i, inner in enumerate(value):
                items.append(self.value(inner, f"{at}[{i}]", level + 1))
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


class _Schema:
    """Builds the expressions of a schema's parts. Methods get a part, its location `at`, and the
    references `within` which it is, and return None if no text of the part fits in the depth."""

    def __init__(self, schema: Any, depth: int, gap: str) -> None:
        self.root, self.depth = schema, depth
        self.n_parts = self.level = 0
        space = Repeat(literal(" "), 0, 1) if gap == " ?" else literal(gap)
        self.comma, self.colon = (Concat((literal(sign), space)) for sign in ",:")
        self.of_type: dict[str, Callable[..., Node | None]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": self._number,
            "number": self._number,
            "boolean": lambda *_: Union((literal("true"), literal("false"))),
            "null": lambda *_: literal("null"),
        }

    def node(self, part: Any, at: str, within: tuple[str, ...]) -> Node | None:
        """Returns the expression of a part."""
        self.level += 1
        self.n_parts += 1
        require(
            self.level <= MAX_LEVELS,
            f"schema: {at} is nested in {MAX_LEVELS} parts; allowed: up to {MAX_LEVELS - 1}",
        )
        require(
            self.n_parts <= MAX_PARTS,
            f"schema: {at} is the {MAX_PARTS}th part; allowed: fewer, as less depth has",
        )
        node = self._part(part, at, within)
        self.level -= 1
        return node

    def _part(self, part: Any, at: str, within: tuple[str, ...]) -> Node | None:
        _check(_OBJECT, part, at)
        for name, value in part.items():
            if name in _KEYWORDS:
                _check(_KEYWORDS[name], value, _below(at, name))
        form = next((name for name in _FORMS if name in part), "type")
        require(
            form in part,
            f"schema: {at} has keywords {list(part)}; allowed: one of type, {', '.join(_FORMS)}",
        )
        kinds = _types(part)
        of_kinds = {name for kind in kinds for name in _TYPES[kind].keywords}
        allowed = {form, *_FORMS.get(form, of_kinds)}
        for name in sorted(part.keys() - allowed - _ABOUT):
            raise ValueError(
                f"schema: {_below(at, name)} is {part[name]!r:.80}, which would not be guaranteed; "
                f"allowed at {at}: {', '.join(sorted(allowed))}"
            )
        if form == "$ref":
            reference = part["$ref"]
            if within.count(reference) >= self.depth:
                return None
            return self.node(*self._resolve(reference, at), (*within, reference))
        if form in ("anyOf", "oneOf"):
            options = [(value, f"{at}.{form}[{i}]") for i, value in enumerate(part[form])]
            nodes = [self.node(*option, within) for option in options]
            if form == "oneOf":
                self._require_disjoint(options)
            return _any_of(nodes)
        if form == "type":
            return _any_of([self.of_type[kind](part, at, within, kind) for kind in kinds])
        values = part["enum"] if form == "enum" else [part["const"]]
        for value in values:
            fits = not kinds or any(_TYPES[kind].matches(value) for kind in kinds)
            require(fits, f"schema: {at}.{form} has {value!r:.80}; allowed: {', '.join(kinds)}")
        return _any_of([value_node(value) for value in values])

    def _resolve(self, reference: str, at: str) -> tuple[Any, str]:
        part, location = self.root, "$"
        for name in filter(None, reference[1:].split("/")):
            require(
                isinstance(part, dict) and name in part,
                f"schema: {at}.$ref is {reference!r}; allowed: what the schema defines",
            )
            part, location = part[name], _below(location, name)
        return part, location

    def _object(self, part: Any, at: str, within: tuple[str, ...], _: str) -> Node | None:
        properties, required = part.get("properties", {}), set(part.get("required", ()))
        missing = sorted(required - properties.keys())
        require(
            not missing,
            f"schema: {at}.required has {missing}; allowed: names among its properties",
        )
        members: list[tuple[Node, bool]] = []
        for name, value in properties.items():
            node = self.node(value, _below(f"{at}.properties", name), within)
            if node is not None:
                members.append((Concat((value_node(name), self.colon, node)), name in required))
            elif name in required:
                return None
        inside: Node = Members(tuple(members), self.comma)
        more = part.get("additionalProperties")
        if isinstance(more, dict) and not properties:  # any names
            value = self.node(more, f"{at}.additionalProperties", within)
            if value is not None:
                member = Concat((quoted(any_string(1, None)), self.colon, value))
                inside = Items(member, self.comma, 0, None)
        return Concat((literal("{"), inside, literal("}")))

    def _array(self, part: Any, at: str, within: tuple[str, ...], _: str) -> Node | None:
        least, most = _bounds(part, "minItems", "maxItems", at)
        require("items" in part, f"schema: {at} has no items; allowed: a schema for them")
        item = self.node(part["items"], f"{at}.items", within)
        if item is None and least:
            return None
        inside = EMPTY if item is None else Items(item, self.comma, least, most)
        return Concat((literal("["), inside, literal("]")))

    def _string(self, part: Any, at: str, within: tuple[str, ...], _: str) -> Node:
        least, most = _bounds(part, "minLength", "maxLength", at)
        if "pattern" not in part and "format" not in part:
            return quoted(any_string(least, most))
        require(
            not {"pattern", "format"} <= part.keys(),
            f"schema: {at} has a pattern and a format; allowed: one of them",
        )
        if "format" in part:
            node, name = format_node(part["format"]), "format"
        else:
            node, name = parse_search(part["pattern"], _refusal(f"{at}.pattern")), "pattern"
        fitting = with_length(node, least, most)
        if fitting is None:
            low, high = lengths(node)
            raise ValueError(
                f"schema: {at} has minLength {least} and maxLength {most}, its {name} {low} to "
                f"{'any number of' if high is None else high} characters; allowed: lengths that "
                "a repetition of single characters can follow"
            )
        return quoted(fitting)

    def _number(self, part: Any, at: str, within: tuple[str, ...], kind: str) -> Node:
        low, excludes_low = _tighter(part, "minimum", "exclusiveMinimum", max)
        high, excludes_high = _tighter(part, "maximum", "exclusiveMaximum", min)
        bounds = Bounds(low, high, excludes_low, excludes_high)
        node = number_node(bounds, integer=kind == "integer")
        if node is None:
            raise ValueError(
                f"schema: {at} has no {kind} within its bounds; allowed: bounds with one between"
            )
        return node

    def _require_disjoint(self, options: list[tuple[Any, str]]) -> None:
        for (first, at), (second, other) in combinations(options, 2):
            is_clear = self._excludes(first, second) and self._excludes(second, first)
            require(
                is_clear,
                f"schema: {at} and {other} might both accept a value; allowed in oneOf: schemas "
                "that differ in type, in a constant, or in required properties",
            )

    def _excludes(self, first: Any, second: Any, levels: int = 8) -> bool:
        """Returns whether it is clear that the texts of the first part do not conform to the
        second one."""
        first, second = (self._without_references(part) for part in (first, second))
        if not levels:
            return False
        for name in ("anyOf", "oneOf"):
            if name in first:
                return all(self._excludes(part, second, levels - 1) for part in first[name])
            if name in second:
                return all(self._excludes(first, part, levels - 1) for part in second[name])
        values = _values(first)
        if values is not None:
            allowed = _values(second)
            kinds = _types(second)
            return all(
                value_node(value) not in map(value_node, allowed)
                if allowed is not None
                else not any(_TYPES[kind].matches(value) for kind in kinds)
                for value in values
            )
        values = _values(second)
        if values is not None:
            kinds = _types(first)
            return not any(_TYPES[kind].matches(value) for kind in kinds for value in values)
        kinds, others = ({*_types(part)} for part in (first, second))
        kinds, others = (
            {"number" if k == "integer" else k for k in names} for names in (kinds, others)
        )
        if not kinds & others:
            return True
        if kinds != {"object"} or others != {"object"}:
            return False
        inner, outer = (part.get("properties", {}) for part in (first, second))
        always, needed = ({*part.get("required", ())} for part in (first, second))
        return (
            not needed <= inner.keys()
            or (second.get("additionalProperties") is False and not always <= outer.keys())
            or any(self._excludes(inner[n], outer[n], levels - 1) for n in always & outer.keys())
        )

    def _without_references(self, part: Any) -> Any:
        for _ in range(MAX_LEVELS):
            if "$ref" not in part:
                break
            part, _at = self._resolve(part["$ref"], "oneOf")
        return part


def _types(part: Any) -> list[str]:
    kinds = part.get("type", [])
    return kinds if isinstance(kinds, list) else [kinds]


def _values(part: Any) -> list[Any] | None:
    """Returns the values of a part with constants."""
    return part["enum"] if "enum" in part else [part["const"]] if "const" in part else None


def _refusal(at: str) -> Callable[[str], None]:
    def refuse(problem: str) -> None:
        raise ValueError(
            f"schema: {at} has {problem}; allowed: characters, classes, groups, alternatives and "
            r"repetitions, `^` and `$` at the ends, without look-around, references and \b"
        )

    return refuse


def _tighter(
    part: Any, inclusive: str, exclusive: str, tightest: Callable[..., Any]
) -> tuple[Decimal | None, bool]:
    """Returns the bound of a number that decides, and whether it is excluded."""
    bounds = [
        (Decimal(repr(part[name])), name == exclusive)
        for name in (inclusive, exclusive)
        if name in part
    ]
    if not bounds:
        return None, False
    bound = tightest(value for value, _ in bounds)
    return bound, (bound, True) in bounds


def _check(keyword: _Keyword, value: Any, at: str) -> None:
    if not keyword.fits(value):  # not `require`, because printing a large value takes long
        raise ValueError(f"schema: {at} is {value!r:.80}; allowed: {keyword.allowed}")


def _below(at: str, name: str) -> str:
    return f"{at}.{name}" if name.isprintable() else f"{at}.{name!r}"


def _any_of(nodes: Sequence[Node | None]) -> Node | None:
    possible = tuple(node for node in nodes if node is not None)
    return Union(possible) if possible else None


def _bounds(part: Any, least: str, most: str, at: str) -> tuple[int, int | None]:
    low, high = part.get(least, 0), part.get(most)
    require(
        high is None or low <= high,
        f"schema: {at}.{most} is {high!r}; allowed: {least} ({low!r}) or more",
    )
    return low, high
