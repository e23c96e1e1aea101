"""Checks of settings and of untrusted JSON, which raise a `ValueError` of one clear sentence.

The sentence has the form "<name> is <value>; allowed: <...>", so that a user can correct the input
without reading code.
"""

import itertools
import json
import math
import sys
from collections.abc import Iterable, Iterator
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

_MAX_MESSAGE = 1000
_MAX_LINE_BYTES = 1 << 24


def require(condition: bool, message: str) -> None:
    """Raises `ValueError(message)`, shortened, unless `condition` is true."""
    if not condition:
        raise ValueError(shortened(message))


def require_value(holds: bool, name: str, value: Any, allowed: str) -> None:
    """Raises `ValueError` with the value unless `holds` is true.

    Unlike an argument of `require`, the message is only formatted if the check fails, because the
    value can be a complete vocabulary.
    """
    if not holds:
        raise ValueError(shortened(f"{name} is {value!r:.80}; allowed: {allowed}"))


def shortened(message: str) -> str:
    """Returns a message without its middle if it is too long, for example because of its value."""
    start, end = message[: _MAX_MESSAGE // 2], message[-_MAX_MESSAGE // 2 :]
    return message if len(message) <= _MAX_MESSAGE else f"{start} ... {end}"


def require_choice(name: str, value: object, literal: Any) -> None:
    """Raises `ValueError` unless `value` is one of the strings of a `Literal` type."""
    allowed = get_args(literal)
    require(value in allowed, f"{name} is {value!r}; allowed: {', '.join(map(repr, allowed))}")


def require_choices(owner: Any) -> None:
    """Raises `ValueError` unless all fields with a `Literal` type have an allowed value."""
    for name, hint in get_type_hints(type(owner)).items():
        value = getattr(owner, name)
        for option in (hint, *get_args(hint)):
            if get_origin(option) is Literal and (value is not None or option is hint):
                require_choice(name, value, option)


def require_counts(owner: object, *names: str, least: int = 1, most: float = math.inf) -> None:
    """Raises `ValueError` unless each named field is a whole number from `least` to `most`. None is
    allowed if it is the field's default."""
    allowed = f"{least} or more" if math.isinf(most) else f"{least} to {most}"
    for name in names:
        value, default = getattr(owner, name), getattr(type(owner), name, least)
        in_range = _is(Integral, value) and least <= int(value) <= most
        require(
            in_range or (value is None and default is None),
            f"{name} is {value!r}; allowed: {allowed}",
        )


def require_numbers(
    owner: object,
    *names: str,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
) -> None:
    """Raises `ValueError` unless each named field is a finite number within the bounds."""
    low = f"{least} or more" if least > above else f"above {above}"
    allowed = f"{low}, and finite" if math.isinf(most) else f"{low}, up to {most}"
    for name in names:
        value = getattr(owner, name)
        finite = _is(Real, value) and abs(value) <= sys.float_info.max
        require(
            finite and least <= value <= most and value > above,
            f"{name} is {value!r}; allowed: {allowed}",
        )


def require_multiple(owner: object, *names: str, of: str) -> None:
    """Raises `ValueError` unless each named field is a multiple of the field `of`."""
    divisor = getattr(owner, of)
    for name in names:
        value = getattr(owner, name)
        require(value % divisor == 0, f"{name} is {value}; allowed: a multiple of {of} ({divisor})")


def require_seed(name: str, value: Any) -> None:
    """Raises `ValueError` unless the value is a whole number that `jax.random.key` accepts."""
    require(
        _is(Integral, value) and -(2**63) <= value < 2**63,
        f"{name} is {value!r}; allowed: a whole number from -2**63 to 2**63 - 1",
    )


def ascending_counts(name: str, values: Any, least: int = 1) -> tuple[int, ...]:
    """Returns the values as a tuple. Raises `ValueError` unless they are ascending integers."""
    counts = list(values) if isinstance(values, Iterable) else []
    require(
        len(counts) > 0
        and all(_is(Integral, count) for count in counts)
        and counts[0] >= least
        and all(a < b for a, b in itertools.pairwise(counts)),
        f"{name} is {counts if isinstance(values, Iterable) else values!r}; allowed: ascending, "
        f"from {least} on, at least one whole number",
    )
    return tuple(int(count) for count in counts)


def parse_json(content: str | bytes, wrong: str, allowed: str) -> Any:
    """Returns the value of a JSON text. Raises ValueError, with a message that begins with `wrong`,
    for invalid JSON and for objects with a repeated key."""
    try:
        return json.loads(content, object_pairs_hook=_with_each_key_once)
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        raise ValueError(shortened(f"{wrong}: {error}; allowed: {allowed}")) from error


def read_object(path: Path, wrong: str = "is no JSON") -> dict[str, Any]:
    """Returns the JSON object in a file. Raises ValueError, with a message that begins with the
    path and `wrong`, for invalid JSON and for other values."""
    allowed = "one JSON object"
    value = parse_json(path.read_bytes(), f"{path} {wrong}", allowed)
    require(isinstance(value, dict), f"{path} {wrong}: it has {value!r:.60}; allowed: {allowed}")
    return value


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines of a text file that are not blank, with their numbers, counted from 1.

    Only line feeds end a line, because JSON strings can contain the other line ends that
    `str.splitlines` splits at. A byte-order mark is skipped. Raises ValueError with the line's
    number if it is not UTF-8 or longer than 16 MiB.
    """
    with path.open("rb") as file:
        for number in itertools.count(1):
            raw = file.readline(_MAX_LINE_BYTES + 1)
            if not raw:
                return
            location, limit = f"{path}, line {number}", f"{_MAX_LINE_BYTES:,} bytes"
            require(len(raw) <= _MAX_LINE_BYTES, f"{location}: it is too long; allowed: {limit}")
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise ValueError(f"{location}: {error}; allowed: text in UTF-8") from error
            if line.strip():
                yield number, line


def _with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        require(key not in result, f"{key!r} stands there twice")
        result[key] = value
    return result


def _is(kind: Any, value: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
