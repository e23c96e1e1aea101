"""Long addition: the sum of two long numbers, with the carries of all columns.

The worked answer has the carry of each column, then the sum. A column depends on the column to its
right, and through columns whose digits add up to nine on those further right. A third of the
columns are such, so the chains are long, and the best order of decoding is not left to right.

The key of an item is its two numbers in any order.
"""

from random import Random

from llada_jax.evaluation.task import ANSWER_MARK, Item, OwnsKey, Task, is_worked_answer

DIGITS = {0: 4, 1: 8, 2: 16}  # by difficulty
_NINES = 1 / 3  # share of columns whose digits add up to nine
DRILLED_SUMS = 3


def _draw(rng: Random, difficulty: int, owns: OwnsKey) -> Item | None:
    """Draws two numbers of equal length; None if the item belongs to the other split."""
    columns = [_column(rng, first=place == 0) for place in range(DIGITS[difficulty])]
    a, b = (int("".join(map(str, digits))) for digits in zip(*columns, strict=True))
    if not owns(f"{min(a, b)} {max(a, b)}"):
        return None
    total = str(a + b)
    return Item(f"Add.\n{a}\n{b}", f"{carries(a, b)}\n{ANSWER_MARK} {total}", total)


def _drill(rng: Random, difficulty: int, owns: OwnsKey) -> Item:
    """Asks for the carries and the sums of several pairs, one after the other."""
    items: list[Item] = []
    while len(items) < DRILLED_SUMS:
        item = _draw(rng, difficulty, owns)
        items += [] if item is None else [item]
    pairs = [item.question.removeprefix("Add.\n").replace("\n", "+") for item in items]
    answer = "\n".join(item.answer.replace(f"\n{ANSWER_MARK}", "") for item in items)
    return Item(f"Add all.\n{' '.join(pairs)}", answer, answer)


def carries(a: int, b: int) -> str:
    """Returns the carry out of each column, 0 or 1, from the left."""
    length = max(len(str(a)), len(str(b)))
    sums = ((a % 10**place) + (b % 10**place) for place in range(1, length + 1))
    digits = [str(total // 10**place) for place, total in enumerate(sums, 1)]
    return "".join(reversed(digits))


def _column(rng: Random, *, first: bool) -> tuple[int, int]:
    """Draws two digits; the first digits of numbers are not zero."""
    smallest = 1 if first else 0
    if rng.random() < _NINES:
        digit = rng.randint(smallest, 9 - smallest)
        return digit, 9 - digit
    return rng.randint(smallest, 9), rng.randint(smallest, 9)


TASK = Task(
    name="long_addition",
    about="a sum of two long numbers, with its carries",
    draw=_draw,
    difficulties={level: f"{digits} digits" for level, digits in DIGITS.items()},
    gen_length=64,
    strict=is_worked_answer,
    drill=_drill,
)
