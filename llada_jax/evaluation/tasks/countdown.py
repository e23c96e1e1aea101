"""Countdown: reach a number from several numbers, each used exactly once.

Every expression that does so is right. The worked answer computes its expression step by step, and
gives the whole expression after `####`.

The key of an item is the set of its numbers and the number to reach.
"""

import ast
import operator
import re
from collections import Counter
from fractions import Fraction
from random import Random
from typing import NamedTuple

from llada_jax.evaluation.task import ANSWER_MARK, Item, OwnsKey, Task, final_answer


class _CountdownLevel(NamedTuple):
    count: int  # numbers
    largest: int  # of the drawn numbers
    largest_value: int  # of every intermediate result
    symbols: str


LEVELS = {
    0: _CountdownLevel(3, 9, 30, "+-"),
    1: _CountdownLevel(3, 10, 99, "+-*"),
    2: _CountdownLevel(4, 25, 199, "+-*/"),
    3: _CountdownLevel(3, 12, 40, "+-"),
}
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_LONGEST_EXPRESSION = 100  # characters; `ast.parse` must not get deeply nested text


class _Term(NamedTuple):
    value: int
    text: str
    symbol: str = ""  # the operation applied last; empty for a number


def verify(item: Item, text: str) -> bool:
    """Tells whether the expression after `####` uses each number once and has the target value."""
    expression = final_answer(text).removesuffix(".").partition("=")[0].strip()
    if len(expression) > _LONGEST_EXPRESSION:
        return False
    try:
        value, numbers = _evaluate(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return False
    *numbers_to_use, target = map(int, re.findall("[0-9]+", item.question))
    return Counter(numbers) == Counter(numbers_to_use) and value == target


def strict(item: Item, text: str) -> bool:
    """Tells whether the equations before the expression are true, and use each number and each
    result once until only the target is left."""
    working, _, expression = text.strip().partition(f"\n{ANSWER_MARK} ")
    *numbers, target = re.findall("[0-9]+", item.question)
    left = Counter(numbers)
    for equation in working.split(" "):
        parts = re.fullmatch(r"([0-9]+)([-+*/])([0-9]+)=([0-9]+)", equation)
        if parts is None:
            return False
        a, symbol, b, result = parts.groups()
        left.subtract([a, b])
        if min(left.values()) < 0:
            return False
        joined = _joined(_Term(int(a), a), symbol, _Term(int(b), b))
        if joined is None or str(joined.value) != result:
            return False
        left[result] += 1
    return +left == Counter([target]) and re.fullmatch("[-+*/()0-9]+", expression) is not None


def _draw(rng: Random, difficulty: int, owns: OwnsKey) -> Item | None:
    """Draws numbers and combines two at a time until one is left; None if a result is too large."""
    level = LEVELS[difficulty]
    numbers = [rng.randint(1, level.largest) for _ in range(level.count)]
    terms, working = [_Term(number, str(number)) for number in numbers], []
    while len(terms) > 1:
        right, left = (terms.pop(rng.randrange(len(terms))) for _ in range(2))
        joined = _joined(left, rng.choice(level.symbols), right)
        if joined is None or joined.value > level.largest_value:
            return None
        working.append(f"{left.value}{joined.symbol}{right.value}={joined.value}")
        terms.append(joined)
    (result,) = terms
    if not owns(f"{sorted(numbers)} {result.value}"):
        return None
    listed = ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
    return Item(
        f"Use {listed} once each to make {result.value}.",
        f"{' '.join(working)}\n#### {result.text}",
        result.text,
    )


def _joined(left: _Term, symbol: str, right: _Term) -> _Term | None:
    """Returns the combined term, with brackets if needed; None unless a positive integer."""
    if symbol == "/" and left.value % right.value:
        return None
    a, b = left.value, right.value
    value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[symbol]
    if value <= 0:
        return None
    binds_first = symbol in "*/" and left.symbol and left.symbol in "+-"
    binds_last = (symbol in "*/" and right.symbol) or (symbol == "-" and right.symbol in "+-")
    first = f"({left.text})" if binds_first else left.text
    last = f"({right.text})" if binds_last and right.symbol else right.text
    return _Term(value, f"{first}{symbol}{last}", symbol)


def _evaluate(node: ast.expr) -> tuple[Fraction, list[int]]:
    """Returns the value and the numbers of an expression of whole numbers, or raises ValueError."""
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return Fraction(number), [number]
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATORS:
            first, first_numbers = _evaluate(left)
            second, second_numbers = _evaluate(right)
            value = _OPERATORS[type(operation)](first, second)
            return value, first_numbers + second_numbers
    raise ValueError("only + - * / on whole numbers is allowed")


TASK = Task(
    name="countdown",
    about="an expression of given numbers that has a given value",
    draw=_draw,
    difficulties={
        difficulty: f"{level.count} numbers up to {level.largest}, {' '.join(level.symbols)}"
        for difficulty, level in LEVELS.items()
    },
    gen_length=64,
    verify=verify,
    strict=strict,
)
