"""Regular expressions as trees, and the parser of their syntax.

A tree describes texts in characters; `byte_automaton` turns it into an automaton over UTF-8.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from llada_jax.config import require

MAX_REPEAT = 1 << 14
_MAX_GROUPS = 100  # nested groups; each takes four of Python's 1000 stack frames
_LAST = sys.maxunicode
_SURROGATES = (0xD800, 0xDFFF)  # code points without UTF-8

Ranges = tuple[tuple[int, int], ...]
"""Code points as sorted ranges, both ends included."""


class Chars(NamedTuple):
    """One character of a set."""

    ranges: Ranges


class Concat(NamedTuple):
    parts: "tuple[Node, ...]"


class Union(NamedTuple):
    parts: "tuple[Node, ...]"


class Repeat(NamedTuple):
    """At least `least` and at most `most` times the part; None is without limit."""

    part: "Node"
    least: int
    most: int | None


class Members(NamedTuple):
    """Parts in order with a separator between them, each with a flag: whether it is required."""

    parts: "tuple[tuple[Node, bool], ...]"
    separator: "Node"


class Items(NamedTuple):
    """At least `least` and at most `most` times the part, with a separator between them."""

    part: "Node"
    separator: "Node"
    least: int
    most: int | None


Node = Chars | Concat | Union | Repeat | Members | Items
EMPTY = Concat(())


def ranges_of(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Returns the union of ranges, sorted and merged, without surrogates."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pairs):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    return _intersect(merged, [(0, _SURROGATES[0] - 1), (_SURROGATES[1] + 1, _LAST)])


def complement(ranges: Ranges) -> Ranges:
    """Returns all other characters."""
    ends = [-1, *(end for low, high in ranges for end in (low - 1, high)), _LAST]
    return ranges_of((a + 1, b) for a, b in zip(ends[::2], ends[1::2], strict=True) if a < b)


def intersect(first: Ranges, second: Ranges) -> Ranges:
    """Returns the common characters."""
    return ranges_of(_intersect(first, second))


def _intersect(first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]]) -> Ranges:
    both = ((max(a, c), min(b, d)) for a, b in first for c, d in second)
    return tuple((low, high) for low, high in both if low <= high)


def literal(text: str) -> Node:
    """Returns the node of one text."""
    return Concat(tuple(Chars(((ord(char), ord(char)),)) for char in text))


def chars(text: str) -> Chars:
    """Returns the node of one of several characters."""
    return Chars(ranges_of((ord(char), ord(char)) for char in text))


def lengths(node: Node) -> tuple[int, int | None]:
    """Returns the minimum and maximum number of characters of a text; None is without limit."""
    if isinstance(node, Chars):
        return 1, 1
    if isinstance(node, Repeat):
        (low, high), most = lengths(node.part), node.most
        unlimited = high != 0 and most != 0 and (high is None or most is None)
        return low * node.least, None if unlimited else (high or 0) * (most or 0)
    assert not isinstance(node, Members | Items), "only objects and arrays have separators"
    bounds = [lengths(part) for part in node.parts]
    total = sum if isinstance(node, Concat) else max
    lows, highs = [low for low, _ in bounds], [high for _, high in bounds if high is not None]
    least = sum(lows) if isinstance(node, Concat) else min(lows, default=0)
    return least, None if len(highs) < len(bounds) else total([0, *highs])


_WORD = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE = ((9, 13), (32, 32))
_CLASSES: dict[str, Ranges] = {"d": ((48, 57),), "w": _WORD, "s": _SPACE}
_CLASSES |= {name.upper(): complement(ranges) for name, ranges in _CLASSES.items()}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
ANY = complement(())
_ANY_BUT_NEWLINE = complement(((10, 10),))


def parse_regex(pattern: str) -> Node:
    """Parses a regular expression that describes whole texts.

    Allowed are characters, `.` (not a newline), classes such as `[^a-z\\d]`, the escapes `\\d`,
    `\\w` and `\\s` in ASCII, `\\x41`, `\\u0041` and `\\u{1F600}`, groups with and without a name,
    `|`, and the repetitions `*`, `+`, `?`, `{2}`, `{2,}` and `{2,5}`, also followed by `?`.

    Raises ValueError for anything else, such as anchors, look-around and word boundaries.
    """
    shown = pattern if len(pattern) <= 80 else f"{pattern[:77]}..."
    parser = _Parser(pattern, partial(_refuse, f"regex {shown!r}"))
    node = parser.union(0)
    if parser.at < len(pattern):
        parser.fail("a `)` without `(`")
    return node


def parse_search(pattern: str, refuse: Callable[[str], Any]) -> Node:
    """Parses the `pattern` of a JSON schema, which a text contains anywhere unless `^` and `$`
    anchor it; both may be at the ends of the alternatives. `refuse` raises an error."""
    parser = _Parser(pattern, refuse)
    parser.anchors = True
    node = parser.union(0)
    if parser.at < len(pattern):
        parser.fail("a `)` without `(`")
    return node


def _refuse(where: str, problem: str) -> None:
    raise ValueError(
        f"{where} has {problem}; allowed: characters, classes, groups, alternatives and "
        r"repetitions, without anchors, look-around, references and \b"
    )


class _Parser:
    """A recursive-descent parser. `at` is the position of the next character."""

    def __init__(self, pattern: str, refuse: Callable[[str], Any]) -> None:
        self.pattern, self.refuse = pattern, refuse
        self.at, self.anchors = 0, False

    def fail(self, problem: str) -> None:
        self.refuse(f"{problem} at position {self.at}")
        raise AssertionError("refuse raises")

    def peek(self, count: int = 1) -> str:
        return self.pattern[self.at : self.at + count]

    def take(self, text: str) -> bool:
        found = self.pattern.startswith(text, self.at)
        self.at += len(text) * found
        return found

    def union(self, level: int) -> Node:
        if level > _MAX_GROUPS:
            self.fail(f"more than {_MAX_GROUPS} nested groups")
        parts = [self.concat(level)]
        while self.take("|"):
            parts.append(self.concat(level))
        return parts[0] if len(parts) == 1 else Union(tuple(parts))

    def concat(self, level: int) -> Node:
        search, parts = self.anchors and level == 0, []
        if search and not self.take("^"):
            parts.append(Repeat(Chars(ANY), 0, None))
        while self.peek() not in ("", "|", ")"):
            if search and self.take("$"):
                if self.peek() not in ("", "|"):
                    self.fail("text after `$`")
                break
            parts.append(self.repeat(self.atom(level)))
        else:
            if search:
                parts.append(Repeat(Chars(ANY), 0, None))
        return parts[0] if len(parts) == 1 else Concat(tuple(parts))

    def repeat(self, node: Node) -> Node:
        while (sign := self.peek()) and sign in "*+?{":
            self.at += 1
            if sign == "{":
                body, closed, _ = self.pattern[self.at :].partition("}")
                low, comma, high = body.partition(",")
                numbers = [number for number in (low, high) if number]
                if not closed or not low or not all(n.isascii() and n.isdigit() for n in numbers):
                    self.fail("a `{` that begins no repetition")
                self.at += len(body) + 1
                least = int(low[:9])
                most = least if not comma else int(high[:9]) if high else None
            else:
                least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
            if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
                self.fail(f"a repetition from {least} to {most} ({MAX_REPEAT} is the maximum)")
            if self.peek() == "+":
                self.fail("a possessive `+`")
            self.take("?")
            node = Repeat(node, least, most)
        return node

    def atom(self, level: int) -> Node:
        if self.take("("):
            if self.take("?") and not self.take(":"):
                named = self.take("P<") or (self.peek(2) not in ("<=", "<!") and self.take("<"))
                name, closed, _ = self.pattern[self.at :].partition(">")
                if not (named and closed and name.isidentifier()):
                    self.fail("a group that begins with `(?`")
                self.at += len(name) + 1
            node = self.union(level + 1)
            if not self.take(")"):
                self.fail("a `(` without `)`")
            return node
        if self.take("["):
            return Chars(self.char_class())
        char = self.peek()
        if char in "^$*+?{":
            self.fail(f"`{char}`")
        self.at += 1
        if char == ".":
            return Chars(_ANY_BUT_NEWLINE)
        return Chars(self.escape() if char == "\\" else self.one(char))

    def one(self, char: str) -> Ranges:
        if _SURROGATES[0] <= ord(char) <= _SURROGATES[1]:
            self.fail("half a surrogate pair")
        return ((ord(char), ord(char)),)

    def escape(self) -> Ranges:
        char = self.peek()
        self.at += 1
        if char in _CLASSES and char:
            return _CLASSES[char]
        if char in ("x", "u"):
            if self.take("{"):
                digits, closed, _ = self.pattern[self.at :].partition("}")
                size = len(digits) + 1 if closed else 0
            else:
                size = 2 if char == "x" else 4
                digits = self.peek(size)
            try:
                code = int(digits, 16) if size and digits.isalnum() else -1
            except ValueError:
                code = -1
            if len(digits) > 8 or not 0 <= code <= _LAST:
                self.fail(f"the escape \\{char}")
            self.at += size
            return self.one(chr(code))
        if char in _ESCAPES and char:
            return self.one(_ESCAPES[char])
        if not char or char.isalnum() or not char.isascii():
            self.fail(f"the escape \\{char}")
        return self.one(char)

    def char_class(self) -> Ranges:
        negated, pairs = self.take("^"), []
        first = self.at
        while not self.peek() == "]" or self.at == first:
            if not self.peek():
                self.fail("a `[` without `]`")
            if self.peek(2) in ("&&", "--", "~~") or self.peek() == "[":
                self.fail("an operation of classes")
            low = self.class_char()
            if self.peek() == "-" and self.peek(2) not in ("-]", "-"):
                self.at += 1
                high = self.class_char()
                if not (len(low) == len(high) == 1 and low[0][0] == low[0][1] <= high[0][0]):
                    self.fail("a range of a class with wrong ends")
                low = ((low[0][0], high[0][1]),)
            pairs.extend(low)
        self.at += 1
        return complement(ranges_of(pairs)) if negated else ranges_of(pairs)

    def class_char(self) -> Ranges:
        char = self.peek()
        self.at += 1
        if char == "\\" and self.take("b"):
            return self.one("\b")
        return self.escape() if char == "\\" else self.one(char or "]")


def with_length(node: Node, least: int, most: int | None) -> Node | None:
    """Returns a node of texts of `node` with `least` to `most` characters, or None if this function
    knows none. A repetition of single characters is shortened, so that all texts fit; these are
    all fitting texts of `node` if its other parts have fixed lengths."""
    if isinstance(node, Union):
        parts = [with_length(part, least, most) for part in node.parts]
        known = tuple(part for part in parts if part is not None)
        return Union(known) if known else None
    low, high = lengths(node)
    if low >= least and (most is None or (high is not None and high <= most)):
        return node
    parts = node.parts if isinstance(node, Concat) else (node,)
    for i, part in enumerate(parts):
        rest_low, rest_high = lengths(Concat((*parts[:i], *parts[i + 1 :])))
        if isinstance(part, Repeat) and lengths(part.part) == (1, 1):
            count = max(part.least, least - rest_low)
            limits = [part.most] if part.most is not None else []
            if most is not None:
                if rest_high is None:
                    continue
                limits.append(most - rest_high)
            if not limits or count <= min(limits):
                bounded = Repeat(part.part, count, min(limits, default=None))
                return Concat((*parts[:i], bounded, *parts[i + 1 :]))
    return None


def require_text(pattern: Any) -> None:
    require(isinstance(pattern, str), f"regex is {pattern!r}; allowed: text")
