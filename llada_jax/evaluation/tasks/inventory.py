"""Shelves whose counts follow from each other: long answers that use their own results later on.

The count of a shelf follows from two numbers, or from the count of an earlier shelf, which may be
many sentences before it. The worked answer has a sentence for each shelf and one for the sum of two
shelves, four to eight blocks of 32 tokens in all. Sentences open in different ways of different
length, which shifts all text after them: a model that is unsure about an opening has a free choice
there, not an error to make.

The key of an item is its chain of equations.
"""

import re
from pathlib import Path
from random import Random
from typing import NamedTuple

from llada_jax.config_files import read_yaml
from llada_jax.evaluation.task import ANSWER_MARK, Item, OwnsKey, Task, is_worked_answer
from llada_jax.evaluation.wording import THINGS, sentences

SHELVES = {0: 5, 1: 6, 2: 6}  # by difficulty
LARGEST_VALUE = {0: 10, 1: 20, 2: 99}
_LARGEST_CHANGE = 9
SMALLEST_VALUE = 2
_OF_ANOTHER = 0.6  # share of shelves, after the first two, whose count follows from an earlier one
FORMS = read_yaml(Path(__file__).with_suffix(".yaml"))


class _Shelf(NamedTuple):
    """A shelf: its place, the shelf it is compared with (or ""), and its count as a sum."""

    place: str
    other: str
    a: int
    change: int

    @property
    def count(self) -> int:
        return self.a + self.change

    @property
    def equation(self) -> str:
        return f"{self.a}{self.change:+d}={self.count}"


_OPENINGS = re.compile(rf"(^|\. )({'|'.join(map(str.capitalize, FORMS['openings']))}) ")


def strict(item: Item, text: str) -> bool:
    """Tells whether a text is the worked answer, in which each sentence may open in any way."""
    text, answer = (_OPENINGS.sub(r"\1Then ", words) for words in (text, item.answer))
    return is_worked_answer(item._replace(answer=answer), text)


def _draw(rng: Random, difficulty: int, owns: OwnsKey) -> Item | None:
    """Draws shelves and words; None if the item belongs to the other split."""
    shelves, things = _shelves(rng, difficulty, SHELVES[difficulty]), rng.choice(THINGS)
    one, two = rng.sample(shelves, 2)
    total = one.count + two.count
    equation = f"{one.count}+{two.count}={total}"
    if not owns(" ".join([*(shelf.equation for shelf in shelves), equation])):
        return None
    facts = [_shelf_sentence(rng, FORMS["facts"], shelf, things) for shelf in shelves]
    shown = [_shelf_sentence(rng, FORMS["shown"], shelf, things) for shelf in shelves]
    words = {"place": one.place, "other": two.place, "a": one.count, "b": two.count}
    shown.append(_sentence(rng, FORMS["shown"]["together"], sum=equation, things=things, **words))
    ask = f"How many {things} have the {one.place} and the {two.place} shelf together?"
    answer = f"{sentences(shown)}\n{ANSWER_MARK} {total}"
    return Item(f"{sentences(facts)} {ask}", answer, str(total))


def _drill(rng: Random, difficulty: int, owns: OwnsKey) -> Item:
    """Asks for the counts of all shelves in a compact notation, without a story."""
    del owns  # its chains are longer than any item's
    shelves = _shelves(rng, difficulty, len(FORMS["places"]))
    relations = [f"{shelf.place}={shelf.other or shelf.a}{shelf.change:+d}" for shelf in shelves]
    known = [f"{shelf.other}={shelf.a}, " if shelf.other else "" for shelf in shelves]
    results = [f"{shelf.equation}, {shelf.place}={shelf.count}" for shelf in shelves]
    answer = ". ".join(map("".join, zip(known, results, strict=True)))
    return Item(f"What follows? {' '.join(relations)}", answer, answer)


def _shelves(rng: Random, difficulty: int, count: int) -> list[_Shelf]:
    """Draws shelves with counts from `SMALLEST_VALUE` to the difficulty's largest."""
    largest = LARGEST_VALUE[difficulty]
    drawn: list[_Shelf] = []
    for place in rng.sample(FORMS["places"], count):
        other = rng.choice(drawn) if len(drawn) > 1 and rng.random() < _OF_ANOTHER else None
        a = other.count if other else rng.randint(SMALLEST_VALUE, largest)
        least, most = max(SMALLEST_VALUE - a, -_LARGEST_CHANGE), min(largest - a, _LARGEST_CHANGE)
        change = rng.choice([change for change in range(least, most + 1) if change])
        drawn.append(_Shelf(place, other.place if other else "", a, change))
    return drawn


def _shelf_sentence(rng: Random, forms: dict[str, str], shelf: _Shelf, things: str) -> str:
    ways = ("more", "less") if shelf.other else ("given", "lost")
    words = {**shelf._asdict(), "b": abs(shelf.change), "c": shelf.count, "sum": shelf.equation}
    return _sentence(rng, forms[ways[shelf.change < 0]], things=things, **words)


def _sentence(rng: Random, form: str, **words: object) -> str:
    """Fills in a sentence with a random opening."""
    openings, weights = zip(*FORMS["openings"].items(), strict=True)
    return form.format(opening=rng.choices(openings, weights)[0], **words)


TASK = Task(
    name="inventory",
    about="counts of shelves that follow from each other, in answers of several blocks",
    draw=_draw,
    difficulties={
        level: f"{count} shelves, numbers up to {LARGEST_VALUE[level]}"
        for level, count in SHELVES.items()
    },
    gen_length=256,
    strict=strict,
    drill=_drill,
    version=6,
)
