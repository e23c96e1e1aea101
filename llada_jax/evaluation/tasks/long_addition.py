"""Long addition: two numbers below each other, with what is carried; no order from left to right.

The worked answer has what each column passes on to its left, then the sum. A column depends on the
one to its right, and a chain of columns whose digits add to nine on all of them. A third of the
columns are such, so that chains are long.

The key of an item is its two numbers, in whatever order.
"""

from random import Random

from llada_jax.evaluation.task import ANSWER_MARK, Item, OwnsKey, Task

DIGITS = {0: 4, 1: 8, 2: 16}  # by difficulty
NINES = 1 / 3
DRILLED_SUMS = 3


def draw(rng: Random, difficulty: int, owns: OwnsKey) -> Item | None:
    """Draws two numbers of as many digits; None where the split is another's."""
    columns = [_column(rng, first=place == 0) for place in range(DIGITS[difficulty])]
    a, b = (int("".join(map(str, digits))) for digits in zip(*columns, strict=True))
    if not owns(f"{min(a, b)} {max(a, b)}"):
        return None
    total = str(a + b)
    return Item(f"Add.\n{a}\n{b}", f"{carries(a, b)}\n{ANSWER_MARK} {total}", total)


def drill(rng: Random, difficulty: int, owns: OwnsKey) -> Item:
    """Asks for the carries and the sums of several pairs, one after the other."""
    items: list[Item] = []
    while len(items) < DRILLED_SUMS:
        item = draw(rng, difficulty, owns)
        items += [] if item is None else [item]
    pairs = [item.question.removeprefix("Add.\n").replace("\n", "+") for item in items]
    told = [item.answer.replace(f"\n{ANSWER_MARK}", "") for item in items]
    answer = "\n".join(told)
    return Item(f"Add all.\n{' '.join(pairs)}", answer, answer)


def carries(a: int, b: int) -> str:
    """Returns for each column, from the left, what it passes on: 0 or 1."""
    length = max(len(str(a)), len(str(b)))
    sums = ((a % 10**place) + (b % 10**place) for place in range(1, length + 1))
    found = [str(total // 10**place) for place, total in enumerate(sums, 1)]
    return "".join(reversed(found))


def _column(rng: Random, *, first: bool) -> tuple[int, int]:
    """Draws two digits; the first ones of numbers are not zero."""
    least = 1 if first else 0
    if rng.random() < NINES:
        digit = rng.randint(least, 9 - least)
        return digit, 9 - digit
    return rng.randint(least, 9), rng.randint(least, 9)


TASK = Task(
    name="long_addition",
    about="a sum of two long numbers, with what is carried",
    draw=draw,
    difficulties={level: f"{digits} digits" for level, digits in DIGITS.items()},
    gen_length=64,
    drill=drill,
)
