"""What a task is: an endless, seeded sequence of questions, and a verifier of answers.

A task's file draws items; which of them belong to the test split, and that every item is a pure
function of `(seed, index, split, difficulty)`, is decided here, once for all tasks. So is which
items are asked: to score a decoder, or to choose its settings on others.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from random import Random
from typing import Any, Literal, NamedTuple

from llada_jax.config import require, require_choice

Split = Literal["train", "test"]
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
        require_choice("split", split, Split)
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
        return (self.item(seed, i, split, difficulty=difficulty) for i in count())


@dataclass(frozen=True, kw_only=True)
class TaskItems:
    """The first `count` items of a seed's test split. Raises ValueError where `count` is below 1 or
    the task has no such difficulty."""

    task: Task
    count: int
    seed: int = 0
    difficulty: int | None = None
    """None: the task's default."""

    def __post_init__(self) -> None:
        require(self.count > 0, f"items is {self.count}; allowed: 1 or more")
        _ = self.item(0)  # which checks the difficulty

    @property
    def settings(self) -> dict[str, Any]:
        """Says which sequence of items it is, as plain JSON; not how many."""
        default = self.task.default_difficulty
        return {
            "name": self.task.name,
            "version": self.task.version,
            "seed": self.seed,
            "difficulty": default if self.difficulty is None else self.difficulty,
            "split": "test",
        }

    def item(self, index: int) -> Item:
        """Returns the item at a place."""
        return self.task.item(self.seed, index, "test", difficulty=self.difficulty)


@dataclass(frozen=True, kw_only=True)
class ValidationItems(TaskItems):
    """Test items of a seed without those whose question is among the first `scored_items` of the
    seed that is scored. Raises ValueError where that seed is the same, and as `TaskItems`."""

    scored_seed: int
    scored_items: int

    def __post_init__(self) -> None:
        require(
            self.seed != self.scored_seed,
            f"seed is {self.seed}; allowed: another one than scored_seed",
        )
        require(self.scored_items > 0, f"scored_items is {self.scored_items}; allowed: 1 or more")
        super().__post_init__()

    @property
    def settings(self) -> dict[str, Any]:
        """Says which sequence it is, and what was left out of it."""
        without = {"seed": self.scored_seed, "items": self.scored_items}
        return {**super().settings, "without": without}

    def item(self, index: int) -> Item:
        """Returns the item at a place among those that are left."""
        require(index >= 0, f"index is {index}; allowed: 0 or more")
        self._drawn.extend(islice(self._left, max(0, index + 1 - len(self._drawn))))
        return self._drawn[index]

    @cached_property
    def _drawn(self) -> list[Item]:
        return []

    @cached_property
    def _left(self) -> Iterator[Item]:
        kept = self.task.items(self.scored_seed, "test", difficulty=self.difficulty)
        scored = {item.question for item in islice(kept, self.scored_items)}
        drawn = self.task.items(self.seed, "test", difficulty=self.difficulty)
        return (item for item in drawn if item.question not in scored)
