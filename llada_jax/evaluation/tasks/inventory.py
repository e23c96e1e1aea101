"""Shelves whose counts follow from each other: long answers that use their own results later on.

A question tells of several shelves. The count of a shelf follows from two numbers, or from that of
an earlier shelf, which may be far behind it. The worked answer has a sentence for each shelf and
one for two of them together, over four to eight blocks of 32 tokens. Each sentence has one of
several wordings, whichever: there a model that is not sure has a choice, and makes no error.

The key of an item is its chain of equations.
"""

from pathlib import Path
from random import Random

from llada_jax.config_files import read_yaml
from llada_jax.evaluation.stories import THINGS
from llada_jax.evaluation.task import ANSWER_MARK, Item, OwnsKey, Task
from llada_jax.evaluation.wording import sentences

SHELVES = {0: 6, 1: 8, 2: 10}  # by difficulty
LARGEST_VALUE = {0: 10, 1: 20, 2: 99}
LARGEST_CHANGE = 9
SMALLEST_VALUE = 2
OF_ANOTHER = 0.6  # share of shelves, after the first two, that follow from an earlier one
WORDS = read_yaml(Path(__file__).with_suffix(".yaml"))


def draw(rng: Random, difficulty: int, owns: OwnsKey) -> Item | None:
    """Draws shelves and their wordings; None where the split is another's."""
    largest, things = LARGEST_VALUE[difficulty], rng.choice(THINGS)
    counts: dict[str, int] = {}
    facts, shown, equations = [], [], []

    def said(kind: str, **words: object) -> str:
        return rng.choice(WORDS[kind]).format(things=things, **words)

    for place in rng.sample(WORDS["places"], SHELVES[difficulty]):
        other = rng.choice(list(counts)) if len(counts) > 1 and rng.random() < OF_ANOTHER else ""
        a = counts[other] if other else rng.randint(SMALLEST_VALUE, largest)
        change = _change(rng, a, largest)
        counts[place], b = a + change, abs(change)
        kind = ("more" if change > 0 else "less") if other else ("given" if change > 0 else "lost")
        facts.append(said(kind, place=place, other=other, a=a, b=b))
        equations.append(f"{a}{change:+d}={a + change}")
        shown.append(said("shown", place=place, sum=equations[-1]))
    place, other = rng.sample(list(counts), 2)
    total = counts[place] + counts[other]
    equations.append(f"{counts[place]}+{counts[other]}={total}")
    if not owns(" ".join(equations)):
        return None
    shown.append(said("together", place=place, other=other, sum=equations[-1]))
    ask = f"How many {things} have the {place} and the {other} shelf together?"
    answer = f"{sentences(shown)}\n{ANSWER_MARK} {total}"
    return Item(f"{sentences(facts)} {ask}", answer, str(total))


def _change(rng: Random, count: int, largest: int) -> int:
    """Draws what a count may change by, so that it stays from `SMALLEST_VALUE` to `largest`."""
    least, most = max(SMALLEST_VALUE - count, -LARGEST_CHANGE), min(largest - count, LARGEST_CHANGE)
    return rng.choice([change for change in range(least, most + 1) if change])


TASK = Task(
    name="inventory",
    about="counts of shelves that follow from each other, in answers of several blocks",
    draw=draw,
    difficulties={
        level: f"{count} shelves, numbers up to {LARGEST_VALUE[level]}"
        for level, count in SHELVES.items()
    },
    default_difficulty=0,
    gen_length=256,
)
