"""Random JSON schemas and regular expressions, each with a text that fits it."""

import json
import re
from random import Random
from typing import Any

_CHARACTERS = 'ab 0é€"\\\n\t/{}[]()|*+?.^$😀'
_SCALARS = [None, True, False, 0, -7, 10**20, 1.5, -2e-9, "", "a.b", 'é"\\', "x y", "(", "\n"]


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def schema_and_text(rng: Random, depth: int = 3) -> tuple[dict[str, Any], str]:
    """Returns a schema of supported keywords, and compact JSON that fits it."""
    drawn = {f"d{i}": _part(rng, depth - 1, {}) for i in range(rng.randrange(3))}
    schema, text = _part(rng, depth, drawn)
    return schema | {"$defs": {name: part for name, (part, _) in drawn.items()}}, text


def _part(
    rng: Random, depth: int, definitions: dict[str, tuple[dict[str, Any], str]]
) -> tuple[dict[str, Any], str]:
    leaves = ["const", "enum", "string", "integer", "number", "boolean", "null", "types"]
    inner = ["object", "object", "array", "anyOf"] if depth else []
    kind = rng.choice([*leaves, *inner * 2, *(["$ref"] * 2 if definitions else [])])
    least = rng.randrange(3)
    bounds = rng.choice([{}, {"min": least}, {"min": least, "max": least + 2}, {"max": 2}])
    count = rng.randint(bounds.get("min", 0), bounds.get("max", bounds.get("min", 0) + 3))
    if kind == "$ref":
        name = rng.choice(sorted(definitions))
        return {"$ref": f"#/$defs/{name}"}, definitions[name][1]
    if kind == "const":
        value = rng.choice([*_SCALARS, {"a": [1, {}]}, [[], "b"]])
        return {"const": value}, compact(value)
    if kind == "enum":
        values = rng.sample(_SCALARS, rng.randint(1, 4))
        return {"enum": values}, compact(rng.choice(values))
    if kind == "string":
        text = compact("".join(rng.choices(_CHARACTERS, k=count)))
        return {"type": kind, **{f"{end}Length": n for end, n in bounds.items()}}, text
    if kind in ("integer", "number"):
        is_number = kind == "number"
        texts = ["0", "7", "120", *["0.5", "20.25"] * is_number]
        positive = {"type": kind, "minimum": 0}, rng.choice(texts)
        text = rng.choice([*texts, *["1e9", "20.25E-7"] * is_number])
        return rng.choice([({"type": kind}, f"-{text}"), positive])
    if kind in ("boolean", "null"):
        return {"type": kind}, "null" if kind == "null" else rng.choice(["true", "false"])
    if kind == "types":
        return {"type": ["string", "null"], "title": "a"}, rng.choice(["null", '"a"'])
    if kind == "anyOf":
        options = [_part(rng, depth - 1, definitions) for _ in range(rng.randint(1, 3))]
        return {"anyOf": [part for part, _ in options]}, rng.choice(options)[1]
    if kind == "array":
        part, text = _part(rng, depth - 1, definitions)
        limits = {f"{end}Items": n for end, n in bounds.items()}
        return {"type": kind, "items": part, **limits}, f"[{','.join([text] * count)}]"
    names = rng.sample(["a", "b c", 'd"', "é", "", "f.*"], rng.randrange(5))
    members = {name: _part(rng, depth - 1, definitions) for name in names}
    required = [name for name in names if rng.random() < 0.5]
    written = [name for name in names if name in required or rng.random() < 0.5]
    text = ",".join(f"{compact(name)}:{members[name][1]}" for name in written)
    properties = {name: part for name, (part, _) in members.items()}
    return {"type": kind, "properties": properties, "required": required}, f"{{{text}}}"


def pattern_and_text(rng: Random, depth: int = 4) -> tuple[str, str]:
    """Returns a regular expression that Rust and Python read alike, and a text that it matches."""
    kind = rng.choice(["text", "class", *["both", "either", "repeat"] * (depth > 0)])
    if kind == "text":
        text = "".join(rng.choices(_CHARACTERS, k=rng.randrange(4)))
        return re.escape(text), text
    if kind == "class":
        return rng.choice([("[a-c]", "b"), ("[^b]", "é"), (r"\d", "7"), (".", "😀"), (r"\s", "\n")])
    first, text = pattern_and_text(rng, depth - 1)
    if kind == "repeat":
        least, more = rng.randrange(3), rng.randrange(3)
        times = text * rng.randint(least, least + more)
        return f"(?:{first}){{{least},{least + more}}}", times
    second, other = pattern_and_text(rng, depth - 1)
    if kind == "either":
        return f"(?:{first}|{second})", rng.choice([text, other])
    return first + second, text + other
