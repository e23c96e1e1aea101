"""The JSON texts of strings with lengths, patterns and formats, and of numbers in a range.

Every text is valid; some valid texts have another form and are never generated:

- In strings, control characters are written `\\b \\f \\n \\r \\t` or not at all, and no character
  as `\\u0041`.
- Integers are written in digits. Numbers without a bound have an optional fraction and exponent;
  numbers with a bound have no exponent and at most `MAX_FRACTION` digits after the point, or as
  many as their bounds have.
- Formats are restricted as `_FORMATS` shows: dates from the year 1000, `http` and `https` for URIs,
  at most 64 characters before the `@` of an address.
"""

import json
import math
from decimal import Decimal
from functools import cache
from typing import Any, NamedTuple

from llada_jax.constraint.expression import (
    ANY,
    EMPTY,
    Chars,
    Concat,
    Items,
    Members,
    Node,
    Repeat,
    Union,
    chars,
    complement,
    intersect,
    literal,
    parse_regex,
    ranges_of,
)

MAX_FRACTION = 9
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_RAW = complement(
    ranges_of([(0, 0x1F), (0x7F, 0x9F), (ord('"'), ord('"')), (ord("\\"), ord("\\"))])
)
_DIGIT = Chars(((ord("0"), ord("9")),))
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_DATE = (
    r"[1-9][0-9]{3}-(((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01]))|((0[469]|11)-(0[1-9]|[12][0-9]|30))"
    r"|02-(0[1-9]|1[0-9]|2[0-8]))|([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579]"
    r"[26])00)-02-29"
)
_LABEL = "[a-z][a-z0-9]{0,19}(-[a-z0-9]{1,20})?"
_HOST = rf"{_LABEL}(\.{_LABEL}){{1,3}}"
_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_HEX = "[0-9a-f]"
_URL = r"[A-Za-z0-9._~!$&'()*+,;=:@/-]"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"({_DATE})T{_TIME}",
    "email": rf"[A-Za-z0-9_+-]{{1,31}}(\.[A-Za-z0-9_+-]{{1,32}})?@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"{_OCTET}(\.{_OCTET}){{3}}",
    "uri": rf"https?://{_HOST}(:[1-9][0-9]{{0,3}})?(/{_URL}*)?(\?({_URL}|[?])*)?(#({_URL}|[?])*)?",
    "uuid": rf"{_HEX}{{8}}-{_HEX}{{4}}-[1-8]{_HEX}{{3}}-[89ab]{_HEX}{{3}}-{_HEX}{{12}}",
}
FORMATS = tuple(_FORMATS)


def value_node(value: Any) -> Node:
    """Returns the node of one JSON value."""
    return literal(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


@cache
def format_node(name: str) -> Node:
    """Returns the node of a format's texts, in characters of the string."""
    return parse_regex(_FORMATS[name])


def any_string(least: int, most: int | None) -> Node:
    """Returns the node of strings with a length, in characters of the string."""
    return Repeat(Chars(ANY), least, most)


def quoted(node: Node) -> Node:
    """Returns the node of JSON strings, from one in characters of the string."""
    return Concat((literal('"'), _escaped(node), literal('"')))


def _escaped(node: Node) -> Node:
    if isinstance(node, Chars):
        return _escaped_chars(node)
    if isinstance(node, Repeat):
        return Repeat(_escaped(node.part), node.least, node.most)
    assert not isinstance(node, Members | Items), "only objects and arrays have separators"
    return type(node)(tuple(map(_escaped, node.parts)))


@cache
def _escaped_chars(node: Chars) -> Node:
    raw = Chars(intersect(node.ranges, _RAW))
    letters = [
        letter
        for char, letter in _ESCAPES.items()
        if any(low <= ord(char) <= high for low, high in node.ranges)
    ]
    if not letters:
        return raw
    return Union((raw, Concat((literal("\\"), chars("".join(letters))))))


class Bounds(NamedTuple):
    """The bounds of a number; None is without limit."""

    low: Decimal | None = None
    high: Decimal | None = None
    excludes_low: bool = False
    excludes_high: bool = False

    def scaled(self, digits: int) -> tuple[int | None, int | None]:
        """Returns the bounds of numbers with this many digits after the point, as integers."""
        low = None if self.low is None else self.low.scaleb(digits)
        high = None if self.high is None else self.high.scaleb(digits)
        least = None if low is None else math.ceil(low)
        most = None if high is None else math.floor(high)
        least = least + 1 if least is not None and self.excludes_low and least == low else least
        return least, most - 1 if most is not None and self.excludes_high and most == high else most


def number_node(bounds: Bounds, *, integer: bool) -> Node | None:
    """Returns the node of numbers within bounds, or None if there is none."""
    if bounds.low is None and bounds.high is None:
        return _unbounded(integer)
    digits = 0 if integer else _fraction_digits(bounds)
    low, high = bounds.scaled(digits)
    if low is not None and high is not None and low > high:
        return None
    parts = []
    if high is None or high >= 0:
        parts.append(_decimals(max(low or 0, 0), high, digits))
    if low is None or low < 0:
        least = 0 if high is None or high >= 0 else -high
        rest = _decimals(least, None if low is None else -low, digits)
        parts.append(Concat((literal("-"), rest)))
    return Union(tuple(parts))


def _unbounded(integer: bool) -> Node:
    sign, some = Repeat(literal("-"), 0, 1), Repeat(_DIGIT, 1, None)
    whole = Concat((sign, _decimals(0, None, 0)))
    if integer:
        return whole
    exponent = Concat((chars("eE"), Repeat(chars("+-"), 0, 1), some))
    fraction = Concat((literal("."), some))
    return Concat((whole, Repeat(fraction, 0, 1), Repeat(exponent, 0, 1)))


def _fraction_digits(bounds: Bounds) -> int:
    """Returns the maximum number of digits after the point. Readers round to 53 bits, so numbers
    with more than 15 digits might be equal to an excluded bound."""
    given = [bound for bound in (bounds.low, bounds.high) if bound is not None]
    digits = min(MAX_FRACTION, 15 - max(len(str(abs(int(bound)))) for bound in given))
    if bounds.excludes_low or bounds.excludes_high:
        return max(0, digits)
    return max(0, digits, *(min(-int(bound.as_tuple().exponent), 30) for bound in given))


def _decimals(low: int, high: int | None, digits: int) -> Node:
    """Returns the node of numbers from `low` >= 0 to `high`, both in units of the last of the
    `digits` after the point."""
    scale, zeros, nines = 10**digits, "0" * digits, "9" * digits
    first, fraction = divmod(low, scale)
    least = str(fraction).zfill(digits) if digits else ""
    if high is None:
        size = len(str(first)) + 1
        longer = Concat((chars("123456789"), Repeat(_DIGIT, size - 1, None)))
        free = Concat((longer, _fraction(zeros, nines)))
        return Union((_decimals(low, 10 ** (size - 1) * scale - 1, digits), free))
    last, fraction = divmod(high, scale)
    most = str(fraction).zfill(digits) if digits else ""
    if first == last:
        return Concat((literal(str(first)), _fraction(least, most)))
    parts: list[Node] = []
    if least != zeros:
        parts.append(Concat((literal(str(first)), _fraction(least, nines))))
        first += 1
    if most != nines:
        parts.append(Concat((literal(str(last)), _fraction(zeros, most))))
        last -= 1
    while first <= last:  # the numbers of each size
        end = min(last, 10 ** len(str(first)) - 1)
        whole = _digits(str(first), str(end), may_be_short=False)
        parts.append(Concat((whole, _fraction(zeros, nines))))
        first = end + 1
    return Union(tuple(parts))


def _fraction(low: str, high: str) -> Node:
    """Returns the node of fractions with a point, or without one if `low` is zero."""
    if not low:
        return EMPTY
    some = Concat((literal("."), _digits(low, high, may_be_short=True, may_be_empty=False)))
    return Repeat(some, 0, 1) if int(low) == 0 else some


def _digits(low: str, high: str, *, may_be_short: bool, may_be_empty: bool = False) -> Node:
    """Returns the node of digits from `low` to `high`, which have the same length. If they may be
    short, zeros at the end may be left out."""
    size = len(low)
    if not size:
        return EMPTY
    is_zero = low == "0" * size
    if is_zero and high == "9" * size:
        return Repeat(_DIGIT, 0 if may_be_empty else 1 if may_be_short else size, size)
    first, last, rest = int(low[0]), int(high[0]), size - 1
    heads = [(low[0], low[1:], high[1:])]
    if first < last:
        heads = [(low[0], low[1:], "9" * rest), (high[0], "0" * rest, high[1:])]
    if first + 1 < last:
        between = "".join(map(str, range(first + 1, last)))
        heads.append((between, "0" * rest, "9" * rest))
    parts: list[Node] = [EMPTY] if may_be_empty and is_zero else []
    for head, least, most in heads:
        tail = _digits(least, most, may_be_short=may_be_short, may_be_empty=may_be_short)
        parts.append(Concat((chars(head), tail)))
    return Union(tuple(parts))
