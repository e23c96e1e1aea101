"""Checks of what a user sets, and of JSON that others wrote: one clear `ValueError`, or nothing."""

import itertools
import json
import math
import sys
from collections.abc import Iterable, Iterator
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

_LONGEST = 1000
_MAX_LINE_BYTES = 1 << 24


def require(condition: bool, message: str) -> None:
    """Raises `ValueError(message)`, shortened, unless `condition` holds."""
    if not condition:
        raise ValueError(shortened(message))


def require_value(holds: bool, name: str, value: Any, allowed: str) -> None:
    """Raises `ValueError` that shows the value, unless `holds`; only then is the value, which may
    be a whole vocabulary, written."""
    if not holds:
        raise ValueError(shortened(f"{name} is {value!r:.80}; allowed: {allowed}"))


def shortened(message: str) -> str:
    """Returns a message without its middle, where the value that it shows makes it too long."""
    begin, end = message[: _LONGEST // 2], message[-_LONGEST // 2 :]
    return message if len(message) <= _LONGEST else f"{begin} ... {end}"


def require_choice(name: str, value: object, literal: Any) -> None:
    """Raises `ValueError` unless `value` is one of the strings of a `Literal` type."""
    allowed = get_args(literal)
    require(value in allowed, f"{name} is {value!r}; allowed: {', '.join(map(repr, allowed))}")


def require_choices(owner: Any) -> None:
    """Raises `ValueError` unless each field of a `Literal` type, or None, has such a value."""
    for name, hint in get_type_hints(type(owner)).items():
        value = getattr(owner, name)
        for each in (hint, *get_args(hint)):
            if get_origin(each) is Literal and (value is not None or each is hint):
                require_choice(name, value, each)


def require_counts(owner: object, *names: str, least: int = 1, most: float = math.inf) -> None:
    """Raises `ValueError` unless each of these fields is a whole number, `least` or more, up to
    `most`, or None where that is its default."""
    allowed = f"{least} or more" if math.isinf(most) else f"{least} to {most}"
    for name in names:
        value, unset = getattr(owner, name), getattr(type(owner), name, least)
        counts = _is(Integral, value) and least <= int(value) <= most
        require(
            counts or (value is None and unset is None), f"{name} is {value!r}; allowed: {allowed}"
        )


def require_numbers(
    owner: object,
    *names: str,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
) -> None:
    """Raises `ValueError` unless each of these fields is a finite number within the bounds."""
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
    """Raises `ValueError` unless each of these fields is a multiple of the field `of`."""
    part = getattr(owner, of)
    for name in names:
        value = getattr(owner, name)
        require(value % part == 0, f"{name} is {value}; allowed: a multiple of {of} ({part})")


def require_seed(name: str, value: Any) -> None:
    """Raises `ValueError` unless the value is a whole number that a random key takes."""
    require(
        _is(Integral, value) and -(2**63) <= value < 2**63,
        f"{name} is {value!r}; allowed: a whole number from -2**63 to 2**63 - 1",
    )


def ascending_counts(name: str, values: Any, least: int = 1) -> tuple[int, ...]:
    """Returns the values as a tuple. Raises `ValueError` unless they are whole and ascend."""
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
    """Returns what a text says. Raises ValueError, which begins with `wrong`, for what is no JSON,
    and for a key that stands in an object twice."""
    try:
        return json.loads(content, object_pairs_hook=_with_each_key_once)
    except (ValueError, RecursionError) as error:  # the latter: as deep as Python goes
        raise ValueError(shortened(f"{wrong}: {error}; allowed: {allowed}")) from error


def read_object(path: Path, wrong: str = "is no JSON") -> dict[str, Any]:
    """Returns the object that a file holds. Raises ValueError that names the file and says that it
    is `wrong`, as `parse_json`, and for another value."""
    allowed = "one JSON object"
    found = parse_json(path.read_bytes(), f"{path} {wrong}", allowed)
    require(isinstance(found, dict), f"{path} {wrong}: it has {found!r:.60}; allowed: {allowed}")
    return found


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines of a text that are not blank, with their numbers from 1 on.

    A line ends with a line feed alone: JSON may hold the other ends that `str.splitlines` knows. A
    byte-order mark is skipped. Raises ValueError that names the line, for one that is not UTF-8 or
    longer than 16 MiB.
    """
    with path.open("rb") as file:
        for number in itertools.count(1):
            raw = file.readline(_MAX_LINE_BYTES + 1)
            if not raw:
                return
            where, most = f"{path}, line {number}", f"{_MAX_LINE_BYTES:,} bytes"
            require(len(raw) <= _MAX_LINE_BYTES, f"{where}: it is too long; allowed: {most}")
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise ValueError(f"{where}: {error}; allowed: text in UTF-8") from error
            if line.strip():
                yield number, line


def _with_each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        require(key not in found, f"{key!r} stands there twice")
        found[key] = value
    return found


def _is(kind: Any, value: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
