"""What a task is: an endless, seeded sequence of questions, and a verifier of answers.

A task's file draws items; which of them belong to the test split, and that every item is a pure
function of `(seed, index, split, difficulty)`, is decided here, once for all tasks.
"""

import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

from llada_jax.config import require

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")
TEST_SHARE = 16  # one key in so many is for test only
ANSWER_MARK = "####"


class Item(NamedTuple):
    """A question, a worked answer that ends in `#### target`, and the target itself.

    Where the question offers lettered choices, `choices` has their texts in the order A, B, C, D
    and the target is a letter.
    """

    question: str
    answer: str
    target: str
    choices: tuple[str, ...] = ()


OwnsKey = Callable[[str], bool]
Draw = Callable[[Random, int, OwnsKey], Item | None]
"""`draw(rng, difficulty, owns)`: an item, or None where the draw failed or `owns(key)` is False.

The key is the substance of an item, as the task's docstring defines it: items of one key are all in
the same split.
"""
Verify = Callable[[Item, str], bool]


def split_of(key: str) -> Split:
    """Returns the split that owns a key, in every seed and difficulty."""
    return "train" if zlib.crc32(key.encode()) % TEST_SHARE else "test"


def final_answer(text: str) -> str:
    """Returns what follows the last `####`, up to the end of its line; empty without a mark."""
    _, mark, tail = text.rpartition(ANSWER_MARK)
    return tail.strip().split("\n")[0].strip() if mark else ""


def ends_in_target(item: Item, text: str) -> bool:
    """Tells whether a generated answer ends in the item's target, case and a full stop aside."""
    return final_answer(text).removesuffix(".").lower() == item.target.lower()


@dataclass(frozen=True, kw_only=True)
class Task:
    """A generator of items and their verifier."""

    name: str
    about: str
    """One line for tables and error messages."""
    draw: Draw
    difficulties: Mapping[int, str]
    """What each difficulty means."""
    default_difficulty: int = 0
    gen_length: int
    """Answer region, in tokens of the bundled tokenizer, that holds any answer."""
    verify: Verify = ends_in_target
    """Whether a text answers an item."""
    drill: Draw | None = None
    """Draws a question that asks for many of the task's small decisions at once, from which a model
    learns them sooner than from items, where they are few among many words."""
    version: int = 1
    """Raised with every change to what is drawn, so that scores can be told apart."""

    def item(
        self,
        seed: int,
        index: int,
        split: Split,
        *,
        difficulty: int | None = None,
        drill: bool = False,
    ) -> Item:
        """Returns the item, or the drill, at a place in the endless sequence of a seed.

        Raises ValueError for an unknown split or difficulty, a negative index, and no drill.
        """
        draw = self.drill if drill else self.draw
        if draw is None:
            raise ValueError(f"{self.name} has no drill; allowed: a task that has one")
        difficulty = self.default_difficulty if difficulty is None else difficulty
        require(split in SPLITS, f"split is {split!r}; allowed: {', '.join(SPLITS)}")
        require(
            difficulty in self.difficulties,
            f"difficulty of {self.name} is {difficulty!r}; "
            f"allowed: {', '.join(map(str, self.difficulties))}",
        )
        require(index >= 0, f"index is {index}; allowed: 0 or more")
        rng = Random(f"{seed} {index} {split} {difficulty}")

        def owns(key: str) -> bool:
            return split_of(key) == split

        item = None
        while item is None:
            item = draw(rng, difficulty, owns)
        return item

    def items(self, seed: int, split: Split, *, difficulty: int | None = None) -> Iterator[Item]:
        """Yields `item(seed, 0, split)`, `item(seed, 1, split)` and so on, without end."""
        return (self.item(seed, i, split, difficulty=difficulty) for i in itertools.count())
