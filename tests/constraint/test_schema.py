"""Every match of a schema's pattern is JSON of the schema."""

import json
import re

import pytest

from llada_jax.constraint.patterns import choice, json_schema, regex

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
    pattern = json_schema(schema, **{"spaces": None, **options}).pattern
    assert isinstance(pattern, str)
    found = re.fullmatch(pattern, text) is not None
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


def test_members_that_may_be_left_out_keep_their_commas():
    optional = {"type": "object", "properties": {name: {"const": 1} for name in "abc"}}
    written = ["", '"a":1', '"b":1', '"a":1,"c":1', '"a":1,"b":1,"c":1']
    assert all(matches(optional, f"{{{each}}}") for each in written)
    assert not matches(optional, '{,"b":1}') and not matches(optional, '{"a":1"c":1}')


def test_spaces_stand_always_never_or_either_way():
    schema = {"type": "array", "items": {"type": "object", "properties": {"a": {"const": 1}}}}
    for text, spaces in (('[{"a":1},{}]', False), ('[{"a": 1}, {}]', True)):
        assert matches(schema, text) and matches(schema, text, spaces=spaces)
        assert not matches(schema, text, spaces=not spaces)


def test_recursion_ends_at_the_depth():
    shallow = '{"left":null}'
    deep = f'{{"left":{shallow},"right":{shallow}}}'
    assert matches(TREE, shallow, depth=1) and not matches(TREE, deep, depth=1)
    assert matches(TREE, deep, depth=2)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "integer", "minimum": 3}, "minimum 3; allowed: 0"),
        ({"type": "integer", "multipleOf": 3}, "multipleOf, which would not be guaranteed"),
        ({"type": "string", "pattern": "a"}, "pattern, which would not be guaranteed"),
        ({"type": "text"}, "type 'text'; allowed: object"),
        ({"type": "array"}, "no items"),
        ({"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 1}, "ascend"),
        ({"enum": ["a", 3], "type": "string"}, r"values \[3\]"),
        ({"$ref": "other.json"}, "refers to 'other.json'"),
        ({"$ref": "#/$defs/none"}, "what the schema defines"),
        ({"type": "object", "required": ["a"]}, r"requires \['a'\]"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no text"),
        ("{", "no JSON"),
        ([], "allowed: a JSON object"),
    ],
)
def test_what_would_not_be_guaranteed_is_refused(schema, message):
    with pytest.raises(ValueError, match=message):
        json_schema(schema)


def test_other_values_are_refused():
    with pytest.raises(ValueError, match="allowed: 1 to 8"):
        json_schema({"type": "null"}, depth=9)
    with pytest.raises(ValueError, match="none of them empty"):
        choice(["a", ""])
    with pytest.raises(ValueError, match="confidence is 'sure'"):
        regex("a", confidence="sure")  # pyright: ignore
