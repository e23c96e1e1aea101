"""Seeded damage to files: bytes, JSON, and hostile values."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

HOSTILE_NAMES = ["../outside/{name}", "/etc/passwd", "..", "", "\0", "a" * 300, "{absolute}"]
VALUES = [
    *(None, True, False, 0, 1, -1, 1.5, -0.5, 1e308, 2**31, 2**63, 2**64, 10**40),
    *(math.nan, math.inf, -math.inf, "", "text", "\0", "NaN", "../x", [], {}, [[]], [1, 2], [-1]),
    *([2**40] * 3, {"a": 1}, "9" * 5000),
]


class Damage(NamedTuple):
    """The damage done to a copy of a valid artifact."""

    label: str
    states_other: bool = False
    """Whether the artifact is still valid but has another content, which a loader cannot detect."""
    raw_weights: bool = False
    """Whether only bits of weights have changed."""


def flip_bits(rng: Random, path: Path, begin: int = 0, end: int | None = None) -> str:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(begin, len(data) if end is None else end)
        data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"flip bits of {path.name}"


def damage_bytes(rng: Random, path: Path) -> str:
    """Flips, cuts, grows, zeroes, repeats or replaces bytes; returns a description."""
    data = path.read_bytes()
    kinds: dict[str, Callable[[], bytes]] = {
        "cut": lambda: data[: rng.randrange(len(data) + 1)],
        "grow": lambda: data + rng.randbytes(rng.randrange(1, 99)),
        "zero": lambda: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
        "empty": lambda: b"",
        "noise": lambda: rng.randbytes(rng.randrange(1, 999)),
        "swap": lambda: data[len(data) // 2 :] + data[: len(data) // 2],
        "drop the first byte": lambda: data[1:],
    }
    kind = rng.choice(["flip", "flip", *kinds]) if data else "grow"
    if kind == "flip":
        return flip_bits(rng, path)
    path.write_bytes(kinds[kind]())
    return f"{kind}: {path.name}"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON value that can be replaced."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*path, key))


def damage_json(rng: Random, content: Any, name: str) -> tuple[Any, Damage]:
    """Replaces, deletes or nests one value; returns the new content and a description."""
    content = copy.deepcopy(content)
    path = rng.choice(list(places(content)))
    target: Any = content
    for key in path[:-1]:
        target = target[key]
    old, where = target[path[-1]], ".".join(map(str, path))
    kind = rng.choice(["value", "value", "value", "name", "delete", "nest", "nudge"])
    if kind == "delete":
        del target[path[-1]]
        return content, Damage(f"{name}: delete {where}", states_other=isinstance(target, list))
    if kind == "nest":
        target[path[-1]] = _nested(rng.choice([3, 200]), old)
        return content, Damage(f"{name}: nest {where}")
    if kind == "name":
        new: Any = rng.choice(HOSTILE_NAMES)
    elif kind == "nudge" and type(old) in (int, float):
        new = rng.choice([old + 1, old - 1, -old, old * 2, old * 1000])
    else:
        new = rng.choice(VALUES)
    target[path[-1]] = new
    return content, Damage(f"{name}: {where} = {str(new)[:40]!r}", states_other=_alike(old, new))


def _nested(depth: int, value: Any) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def _alike(old: Any, new: Any) -> bool:
    """Whether a reader of only the file could mistake the new value for a valid one."""
    numbers = (int, float)
    if type(old) is bool or type(new) is bool or old is None or new is None:
        return type(old) is type(new) or old is None or new is None
    if isinstance(old, numbers) and isinstance(new, numbers):
        return math.isfinite(new)
    return type(old) is type(new)


def damage_json_file(rng: Random, path: Path) -> Damage:
    if rng.random() < 0.25:
        return Damage(damage_bytes(rng, path), states_other=True)
    if rng.random() < 0.1:
        path.write_text(rng.choice(["[" * 99_999, '{"a":' * 9999, "[]", "null", "1" * 9999, '{"a']))
        return Damage(f"{path.name} is other JSON, or none")
    content, done = damage_json(rng, json.loads(path.read_text()), path.name)
    path.write_text(json.dumps(content))
    return done
