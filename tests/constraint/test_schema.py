"""Every match of a schema's pattern is JSON of the schema."""

import json
import re
from random import Random

import pytest

from llada_jax.constraint import byte_automaton
from llada_jax.constraint.patterns import choice, json_schema, regex
from tests.constraint.random_forms import schema_and_text

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 3},
        "tags": {"type": "array", "items": {"enum": ["a.b", 2, None]}, "maxItems": 2},
        "age": {"type": "integer", "minimum": 0},
        "ratio": {"type": "number"},
    },
    "required": ["name", "age"],
}
TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {
                "left": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
                "right": {"$ref": "#/$defs/tree"},
            },
            "required": ["left"],
        }
    },
}


def matches(schema, text: str, **options) -> bool:
    node = json_schema(schema, **{"spaces": None, **options}).node
    assert node is not None
    found = byte_automaton.matches(byte_automaton.byte_automaton(node), text.encode())
    if found:
        json.loads(text)
    return found


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"name":"Zoë","age":0}', True),
        (r'{"name": "\"\n", "tags":["a.b", null],"age":17, "ratio": -0.5e-3}', True),
        ('{"name":"Zoe","tags":[],"age":17}', True),
        ('{"name":"","age":1}', False),
        ('{"name":"Anna","age":1}', False),
        ('{"name":"Zoe","age":-1}', False),
        ('{"name":"Zoe","age":01}', False),
        ('{"name":"Zoe"}', False),
        ('{"age":1,"name":"Zoe"}', False),
        ('{"name":"Zoe","tags":["axb"],"age":1}', False),
        ('{"name":"Zoe","age":1,}', False),
    ],
)
def test_objects(text, fits):
    assert matches(PERSON, text) is fits


def test_commas_are_right_without_optional_members():
    optional = {"type": "object", "properties": {name: {"const": 1} for name in "abc"}}
    written = ["", '"a":1', '"b":1', '"a":1,"c":1', '"a":1,"b":1,"c":1']
    assert all(matches(optional, f"{{{each}}}") for each in written)
    assert not matches(optional, '{,"b":1}') and not matches(optional, '{"a":1"c":1}')


def test_spaces_are_required_forbidden_or_optional():
    schema = {"type": "array", "items": {"type": "object", "properties": {"a": {"const": 1}}}}
    for text, spaces in (('[{"a":1},{}]', False), ('[{"a": 1}, {}]', True)):
        assert matches(schema, text) and matches(schema, text, spaces=spaces)
        assert not matches(schema, text, spaces=not spaces)


def test_recursion_ends_at_the_depth():
    shallow = '{"left":null}'
    deep = f'{{"left":{shallow},"right":{shallow}}}'
    assert matches(TREE, shallow, depth=1) and not matches(TREE, deep, depth=1)
    assert matches(TREE, deep, depth=2)


def nested(levels: int) -> dict:
    schema: dict = {"type": "null"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


ENDLESS: dict = {"type": "array"}
ENDLESS["items"] = ENDLESS


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "integer", "minimum": 10**31}, "allowed: a number from -1e30 to 1e30"),
        ({"type": "integer", "minimum": False}, "$.minimum is False; allowed: a number"),
        ({"type": "integer", "minimum": 2, "exclusiveMaximum": 2}, "$ has no integer within its"),
        ({"type": "string", "format": "iri"}, "$.format is 'iri'; allowed: date, time"),
        ({"type": "string", "format": "date", "pattern": "a"}, "$ has a pattern and a format"),
        ({"type": "string", "pattern": "a(?=b)"}, "$.pattern has a group that begins with `(?`"),
        ({"type": "string", "pattern": "a$b"}, "$.pattern has text after `$` at position 2"),
        (
            {"type": "string", "pattern": "^a+b+$", "maxLength": 3},
            "$ has minLength 0 and maxLength 3, its pattern 2 to any number of characters",
        ),
        (
            {"oneOf": [{"type": "integer"}, {"type": "number"}]},
            "$.oneOf[0] and $.oneOf[1] might both accept a value",
        ),
        (
            {"anyOf": [{"type": "integer", "multipleOf": 3}]},
            "$.anyOf[0].multipleOf is 3, which would not be guaranteed; allowed at $.anyOf[0]: "
            "exclusiveMaximum, exclusiveMinimum, maximum, minimum, type",
        ),
        ({"type": "text"}, "$.type is 'text'; allowed: object, array"),
        ({"type": {}}, "$.type is {}; allowed: object, array"),
        ({"type": ["null", {}]}, "$.type is ['null', {}]; allowed: object, array"),
        ({"type": []}, "$.type is []; allowed: object, array"),
        ({}, "$ has keywords []; allowed: one of type, $ref, const, enum, anyOf"),
        ({"type": "array"}, "$ has no items; allowed: a schema for them"),
        ({"type": "array", "items": True}, "$.items is True; allowed: a schema"),
        (
            {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 1},
            "$.maxItems is 1; allowed: minItems (2) or more",
        ),
        ({"type": "string", "maxLength": 1e9}, "$.maxLength is 1000000000.0; allowed: a whole"),
        ({"type": "string", "minLength": 10**9}, "is 1000000000; allowed: a whole number from 0"),
        ({"enum": ["a", 3], "type": "string"}, "$.enum has 3; allowed: string"),
        ({"enum": ["a", 3], "type": ["string", "null"]}, "$.enum has 3; allowed: string, null"),
        ({"const": True, "type": "integer"}, "$.const has True; allowed: integer"),
        (
            {"type": "object", "properties": {"age": {"enum": 5}}},
            "$.properties.age.enum is 5; allowed: a list",
        ),
        ({"enum": "ab"}, "$.enum is 'ab'; allowed: a list"),
        ({"enum": []}, "$.enum is []; allowed: a list of one"),
        ({"anyOf": 5}, "$.anyOf is 5; allowed: a list"),
        ({"anyOf": [5]}, "$.anyOf is [5]; allowed: a list of one schema"),
        ({"type": "object", "required": 5}, "$.required is 5; allowed: a list of names"),
        ({"type": "object", "required": [5]}, "$.required is [5]; allowed: a list of names"),
        ({"type": "object", "required": ["a"]}, "$.required has ['a']; allowed: names among"),
        ({"type": "object", "properties": None}, "$.properties is None; allowed: an object"),
        ({"type": "object", "properties": [1]}, "$.properties is [1]; allowed: an object"),
        (
            {"type": "object", "properties": {"a\n": 1}},
            r"$.properties.'a\n' is 1; allowed: an object",
        ),
        ({"type": "null", "additionalProperties": 5}, "$.additionalProperties is 5; allowed: tr"),
        ({"$ref": "other.json"}, "$.$ref is 'other.json'; allowed: '#/$defs/...'"),
        ({"$ref": 5}, "$.$ref is 5; allowed"),
        ({"$ref": "#/$defs/none"}, "$.$ref is '#/$defs/none'; allowed: what the schema defines"),
        ({"$ref": "#/$defs/a", "$defs": {"a": 5}}, "$.$defs.a is 5; allowed: an object"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"enum": 5}}}, "$.$defs.a.enum is 5; allowed"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no text"),
        ("{", "schema is no JSON"),
        ("[" * 9999, "schema is no JSON"),
        ('{"const": NaN}', "$.const is nan; allowed: a JSON value"),
        ([], "$ is []; allowed: an object"),
        (5, "$ is 5; allowed: an object"),
        ({"const": {1: 2}}, "$.const has the name 1; allowed: text"),
        ({"const": b"a"}, "$.const is b'a'; allowed: a JSON value"),
        ({"enum": [0, "\ud800"]}, r"$.enum[1] is '\ud800'; allowed: a JSON value"),
        ({"const": 10**5000}, "$.const has 16610 bits; allowed: up to 1024"),
        ({"description": "a" * (1 << 20), "type": "null"}, "$.description is at level 1, after"),
        (ENDLESS, "is at level 301, after"),
        (nested(200), "is at level 301, after"),
    ],
)
def test_malformed_and_unsupported_schemas_are_refused(schema, message):
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        json_schema(schema)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 1100


def test_the_deepest_allowed_schema_fits_the_stack():
    assert matches(nested(149), '{"a":' * 149 + "null" + "}" * 149)
    definitions: dict = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(200)}
    definitions["d200"] = {"type": "null"}
    with pytest.raises(ValueError, match=r"\$\.\$defs\.d149 is nested in 150 parts"):
        json_schema({"$ref": "#/$defs/d0", "$defs": definitions})


def test_parts_grow_with_a_schema_and_not_faster():
    arrays: dict = {"type": "null"}
    for _ in range(40):
        arrays = {"type": "array", "items": arrays}
    assert matches(arrays, "[" * 40 + "null,null" + "]" * 40)
    optional = {"type": "object", "properties": {f"p{i}": {"const": 1} for i in range(60)}}
    assert matches(optional, '{"p7":1,"p9":1,"p59":1}')
    endless: dict = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
    endless |= {"d40": {"$ref": "#/$defs/d40"}}
    with pytest.raises(ValueError, match="is the 16384th part; allowed: fewer"):
        json_schema({"$ref": "#/$defs/d0", "$defs": endless})


def test_values_that_are_not_a_schema_are_refused():
    with pytest.raises(ValueError, match="allowed: 1 to 8"):
        json_schema({"type": "null"}, depth=9)
    with pytest.raises(ValueError, match="none of them empty"):
        choice(["a", ""])
    with pytest.raises(ValueError, match="confidence is 'sure'"):
        regex("a", confidence="sure")  # pyright: ignore


def test_random_schemas_match_their_texts():
    for seed in range(100):
        schema, text = schema_and_text(Random(seed))
        assert matches(schema, text, spaces=False), (schema, text)
        assert matches(json.dumps(schema), text)
