"""Texts of a schema's automaton are documents that the `jsonschema` package accepts, and back."""

import datetime
import json
import re
from random import Random
from urllib.parse import urlsplit

import jsonschema
import numpy as np
import pytest

from experiments.bench.schemas import SCHEMAS
from llada_jax.constraint.byte_automaton import ByteAutomaton, byte_automaton
from llada_jax.constraint.patterns import json_schema
from tests.constraint.tiny import matches

CHECKER = jsonschema.FormatChecker()


TIME = r"\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)"


@CHECKER.checks("date-time", raises=ValueError)
def _is_time(text: object) -> bool:
    if isinstance(text, str):
        datetime.datetime.fromisoformat(text)
    return not isinstance(text, str) or bool(re.fullmatch(rf"\d{{4}}-\d\d-\d\dT{TIME}", text))


@CHECKER.checks("time", raises=ValueError)
def _is_clock(text: str) -> bool:
    datetime.time.fromisoformat(text)
    return bool(re.fullmatch(TIME, text))


@CHECKER.checks("uri", raises=ValueError)
def _is_uri(text: object) -> bool:
    if not isinstance(text, str):
        return True
    parts = urlsplit(text)
    return bool(parts.scheme and parts.hostname and (parts.port or 80)) and " " not in text


VALUES = {
    "integer range": {"type": "integer", "minimum": -120, "maximum": 1034},
    "integers from": {"type": "integer", "exclusiveMinimum": 98},
    "integers to": {"type": "integer", "exclusiveMaximum": -8.5},
    "number range": {"type": "number", "minimum": -1.25, "exclusiveMaximum": 20.5},
    "small numbers": {"type": "number", "minimum": 0.001, "maximum": 0.0125},
    "numbers from": {"type": "number", "exclusiveMinimum": 0},
    "numbers to": {"type": "number", "maximum": -3},
    "large numbers": {"type": "number", "minimum": 10, "exclusiveMaximum": 1e12},
    "string": {"type": "string", "minLength": 9, "maxLength": 40},
    "long string": {"type": "string", "minLength": 3, "maxLength": 1000},
    "at least": {"type": "string", "minLength": 20},
    "pattern": {"type": "string", "pattern": r'^("|\\|/|[^a]){2,12}$'},
    "pattern inside": {"type": "string", "pattern": "ab|^x|y$"},
    "pattern with length": {
        "type": "string",
        "pattern": "^a[bc]*$",
        "minLength": 3,
        "maxLength": 12,
    },
    "email": {"type": "string", "format": "email", "maxLength": 254},
    "ipv4": {"type": "string", "format": "ipv4"},
    "time": {"type": "string", "format": "time"},
    "pairs": {"type": "array", "items": {"enum": [0, "é", None]}, "minItems": 2, "maxItems": 3},
    "map": {"type": "object", "additionalProperties": {"type": "boolean"}},
    "either": {"anyOf": [{"type": "string", "maxLength": 12}, {"enum": ["a longer constant", 1]}]},
}
ALL = SCHEMAS | VALUES


def sample(automaton: ByteAutomaton, rng: Random) -> bytes:
    """Returns a text of an automaton by a random walk that prefers ways to its end."""
    size = len(automaton.limit)
    distance = np.where(automaton.accepts_from == 0, 0, 1 << 20)
    for _ in range(size):
        after = np.where(automaton.next_state >= 0, distance[automaton.next_state], 1 << 20)
        nearer = np.minimum(distance, after.min(axis=1) + 1)
        if (nearer == distance).all():
            break
        distance = nearer
    byte_of = [np.flatnonzero(automaton.class_of == c) for c in range(automaton.class_of.max() + 1)]
    text, state, count, wandering = bytearray(), automaton.start, 0, rng.choice([0.1, 0.5, 0.9])
    while True:
        if count >= automaton.accepts_from[state] and (rng.random() < 0.3 or len(text) > 3000):
            return bytes(text)
        moves = []
        for column, after in enumerate(automaton.next_state[state]):
            new = int(automaton.count[state, column])
            if automaton.stays[state, column]:
                new = count + new
                new = min(new, automaton.limit[after]) if automaton.saturates[state] else new
            elif count < automaton.leaves_from[state]:
                continue
            if after >= 0 and new <= automaton.limit[after]:
                moves.append((column, int(after), new))
        if not moves:
            return bytes(text)
        leaving = [move for move in moves if not automaton.stays[state, move[0]]]
        if len(text) > 200 and leaving:
            moves = leaving
        if rng.random() > wandering or len(text) > 400:
            least = min(distance[after] for _, after, _ in moves)
            moves = [move for move in moves if distance[move[1]] == least]
        column, state, count = rng.choice(moves)
        text.append(int(rng.choice(byte_of[column])))


def changed(value, rng: Random):
    """Returns a document with one change somewhere."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice(list(value))
        if rng.random() < 0.3:
            return {key: inner for key, inner in value.items() if key != name}
        return value | {name: changed(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        return [*value[:at], changed(value[at], rng), *value[at + 1 :]]
    if isinstance(value, str) and rng.random() < 0.7:
        at = rng.randrange(len(value) + 1)
        return value[:at] + rng.choice(["", "A", "-", "é", '"', "0" * 30]) + value[at + 1 :]
    if isinstance(value, int | float) and type(value) is not bool and rng.random() < 0.7:
        return rng.choice([-value, value * 10 + 1, value + 1, value - 1, 0, value / 7])
    return rng.choice([None, "", -1, 5000, "x" * 1001, [], {}, True, 3.5])


def check(names, n_each: int, seed: int) -> tuple[int, int]:
    """Checks documents of some schemas; returns the numbers of valid and invalid ones."""
    rng, n_valid, n_invalid = Random(seed), 0, 0
    for name in names:
        schema = ALL[name]
        validator = jsonschema.Draft202012Validator(schema, format_checker=CHECKER)
        automaton = byte_automaton(json_schema(schema).node)
        for _ in range(n_each):
            text = sample(automaton, rng)
            assert matches(automaton, text), (name, text)
            document = json.loads(text)
            errors = [error.message for error in validator.iter_errors(document)]
            assert not errors, (name, text, errors)
            n_valid += 1
            other = changed(document, rng)
            spelled = json.dumps(other, ensure_ascii=False, separators=(",", ":"))
            if not validator.is_valid(other):
                assert not matches(automaton, spelled.encode()), (name, spelled)
                n_invalid += 1
    return n_valid, n_invalid


@pytest.mark.parametrize("part", range(4))
def test_texts_are_valid_documents_and_invalid_documents_are_no_texts(part):
    names = list(ALL)[part::4]
    n_valid, n_invalid = check(names, 5, seed=part)
    assert n_valid == 5 * len(names) and n_invalid > n_valid // 4


@pytest.mark.slow
def test_two_thousand_documents():
    n_valid, n_invalid = check(ALL, 50, seed=7)
    assert n_valid == 2000 and n_invalid > 1000


def _document(schema, root, rng: Random, levels: int = 4):
    """Returns a valid document in the form that is generated, drawn from the schema alone."""
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    for form in ("anyOf", "oneOf"):
        if form in schema:
            options = schema[form] if levels > 0 else schema[form][:1]
            return _document(rng.choice(options), root, rng, levels)
    if "enum" in schema or "const" in schema:
        return rng.choice(schema.get("enum", [schema.get("const")]))
    kinds = schema["type"]
    kind = rng.choice(kinds) if isinstance(kinds, list) else kinds
    if kind == "object":
        properties, required = schema.get("properties", {}), schema.get("required", ())
        more = schema.get("additionalProperties")
        if not properties and isinstance(more, dict):
            names = rng.sample(["a", "é b", "x-y", '"'], rng.randrange(4))
            return {name: _document(more, root, rng, levels - 1) for name in names}
        return {
            name: _document(value, root, rng, levels - 1)
            for name, value in properties.items()
            if name in required or (levels > 0 and rng.random() < 0.6)
        }
    if kind == "array":
        least = schema.get("minItems", 0)
        most = schema.get("maxItems", least + 3) if levels > 0 else least
        items = schema["items"]
        count = rng.randint(least, min(most, least + 3))
        return [_document(items, root, rng, levels - 1) for _ in range(count)]
    if kind == "string":
        return _text(schema, rng)
    if kind in ("integer", "number"):
        return _drawn_number(schema, kind, rng)
    return None if kind == "null" else rng.random() < 0.5


FORMATTED = {
    "date": ["2024-02-29", "1999-12-31", "2026-11-27"],
    "date-time": ["2024-02-29T23:59:59Z", "2026-01-01T00:00:00.123456+05:30"],
    "time": ["23:59:59Z"],
    "email": ["anna.b@example.org", "x_1@mail.uni-bonn.de"],
    "hostname": ["localhost.local", "a-b.example.com"],
    "ipv4": ["255.249.0.10"],
    "uri": ["https://example.org/a/b.html?q=1&r=(2)#top", "http://a.bc:8080"],
    "uuid": ["123e4567-e89b-42d3-a456-426614174000"],
}
MATCHING = [
    "left-pad", "1.12.3", "^1.12.3", "FRA", "12345", "INV-2024-00017", "+49 (30) 1234", "2024-10",
    "present", "anna_9", "main", "actions/checkout@v4", "AB12-9ZZZ", "DE", "ab", "xyab", "abcb",
    '""', '\\/"', "README.md",
]  # fmt: skip


def _text(schema, rng: Random) -> str:
    if "format" in schema:
        return rng.choice(FORMATTED[schema["format"]])
    if "pattern" in schema:
        fitting = [
            text for text in MATCHING if jsonschema.Draft202012Validator(schema).is_valid(text)
        ]
        return rng.choice(fitting)
    least = schema.get("minLength", 0)
    length = rng.choice([least, schema.get("maxLength", least + 40), least + 5])
    length = min(length, schema.get("maxLength", length))
    return "".join(rng.choices('abc XYZ 0189 é€😀"\\\n\t/{}', k=length))


def _drawn_number(schema, kind: str, rng: Random):
    numbers = [0, 1, 7, 19, 150, 1034, 2000, -120, -9, -3, 450, 99, 1e11, 10]
    if kind == "number":
        numbers += [0.5, 0.25, -1.25, 0.001, 0.0125, 20.25, 3.75, -180.0, 99999.99, 12.5]
    fitting = [n for n in numbers if jsonschema.Draft202012Validator(schema).is_valid(n)]
    number = rng.choice(fitting)
    return int(number) if number == int(number) else number


def accepted(names, n_each: int, seed: int) -> int:
    rng, count = Random(seed), 0
    for name in names:
        automaton = byte_automaton(json_schema(ALL[name], depth=5).node)
        validator = jsonschema.Draft202012Validator(ALL[name], format_checker=CHECKER)
        for _ in range(n_each):
            document = _document(ALL[name], ALL[name], rng)
            text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
            assert validator.is_valid(document), (name, text)
            assert matches(automaton, text.encode()), (name, text)
            count += 1
    return count


@pytest.mark.parametrize("part", range(2))
def test_valid_documents_are_texts(part):
    assert accepted(list(ALL)[part::2], 5, seed=part) == 100


@pytest.mark.slow
def test_two_thousand_valid_documents_are_texts():
    assert accepted(ALL, 50, seed=3) == 2000
