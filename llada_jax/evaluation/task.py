"""Defines a task: an endless, seeded sequence of questions, and a verifier of answers.

Each task has a function that draws items. This module makes every item a pure function of
`(seed, index, split, difficulty)`, and assigns items to the training or the test split by hashing
the item's key, so that no test item can occur in training data under any seed or difficulty. It
also selects items: items to score a decoder on, and validation items to tune it on.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from random import Random
from typing import Any, Literal, NamedTuple

from llada_jax.config import require, require_choice
from llada_jax.evaluation.prompts import EXAMPLES_SHARE, Message, Prompts, chat_of, ways_to_ask

Split = Literal["train", "test"]
_TEST_SHARE = 16  # one of 16 keys belongs to the test split
ANSWER_MARK = "####"


class Item(NamedTuple):
    """A question, a worked answer that ends in `#### target`, and the target itself.

    For a multiple-choice question, `choices` has the texts of A, B, C and D, and the target is a
    letter.
    """

    question: str
    answer: str
    target: str
    choices: tuple[str, ...] = ()


OwnsKey = Callable[[str], bool]
Draw = Callable[[Random, int, OwnsKey], Item | None]
"""`draw(rng, difficulty, owns)` returns an item, or None if drawing failed or `owns(key)` is False.

The key identifies the content of an item, as the task's docstring defines it; items with the same
key are in the same split.
"""
Verify = Callable[[Item, str], bool]


def split_of(key: str) -> Split:
    """Returns the split of a key, in every seed and difficulty."""
    return "train" if zlib.crc32(key.encode()) % _TEST_SHARE else "test"


def final_answer(text: str) -> str:
    """Returns the rest of the line after the last `####`, or an empty text without a mark."""
    _, mark, tail = text.rpartition(ANSWER_MARK)
    return tail.strip().split("\n")[0].strip() if mark else ""


def ends_in_target(item: Item, text: str) -> bool:
    """Tells whether an answer ends in the item's target, ignoring case and a final full stop."""
    return final_answer(text).removesuffix(".").lower() == item.target.lower()


def is_worked_answer(item: Item, text: str) -> bool:
    """Tells whether a text is the worked answer, for tasks whose templates write only one."""
    return text.strip() == item.answer


@dataclass(frozen=True, kw_only=True)
class Task:
    """A generator of items and their verifier."""

    name: str
    about: str
    """One line for tables and error messages."""
    draw: Draw
    difficulties: Mapping[int, str]
    """Descriptions of the difficulties."""
    default_difficulty: int = 0
    gen_length: int
    """Length in tokens of the bundled tokenizer that is enough for any answer."""
    verify: Verify = ends_in_target
    """Whether a text answers an item."""
    strict: Verify | None = None
    """Whether every word of a right text is right: the task's templates write it for this item, so
    its equations are true and follow from each other. None if the task has no such check."""
    drill: Draw | None = None
    """Draws a question that asks for many of the task's small decisions at once. A model learns
    these sooner from drills than from items, in which they are few among many words."""
    version: int = 1
    """Raised with every change of the drawn items, because scores then differ."""

    def item(
        self,
        seed: int,
        index: int,
        split: Split,
        *,
        difficulty: int | None = None,
        drill: bool = False,
    ) -> Item:
        """Returns the item, or the drill, at an index of the endless sequence of a seed.

        Raises ValueError for an unknown split or difficulty, a negative index, and a task without
        a drill.
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

    def grade(self, item: Item, text: str) -> tuple[bool, bool | None]:
        """Tells whether a text answers an item, and whether it also is right in every word; None if
        the task has no such check."""
        right = self.verify(item, text)
        return right, None if self.strict is None else right and self.strict(item, text)

    def chat(
        self,
        question: str,
        prompts: Prompts,
        rng: Random,
        difficulty: int | None = None,
        examples_share: float = EXAMPLES_SHARE,
    ) -> list[Message]:
        """Returns a chat that asks a question; its examples are of the training split.

        Args:
          examples_share: Share of the prompts of `train` that have examples.
        """

        def example() -> Item:
            return self.item(rng.randrange(1 << 20), 0, "train", difficulty=difficulty)

        return chat_of(self.name, question, prompts, rng, example, examples_share)

    def items(self, seed: int, split: Split, *, difficulty: int | None = None) -> Iterator[Item]:
        """Yields `item(seed, 0, split)`, `item(seed, 1, split)` and so on, without end."""
        return (self.item(seed, i, split, difficulty=difficulty) for i in count())


@dataclass(frozen=True, kw_only=True)
class TaskItems:
    """The first `count` items of a seed's test split. Raises ValueError if `count` is below 1 or
    the task does not have the difficulty or the prompts."""

    task: Task
    count: int
    seed: int = 0
    difficulty: int | None = None
    """None for the task's default."""
    prompts: Prompts = "plain"
    """How the questions are asked."""

    def __post_init__(self) -> None:
        require(self.count > 0, f"items is {self.count}; allowed: 1 or more")
        allowed = ways_to_ask(self.task.name)
        require(
            self.prompts in allowed,
            f"prompts of {self.task.name} is {self.prompts!r}; allowed: {', '.join(allowed)}",
        )
        _ = self.item(0)  # checks the difficulty

    @property
    def settings(self) -> dict[str, Any]:
        """The sequence of items, as plain JSON; does not include the count."""
        default = self.task.default_difficulty
        return {
            "name": self.task.name,
            "version": self.task.version,
            "seed": self.seed,
            "difficulty": default if self.difficulty is None else self.difficulty,
            "split": "test",
        } | ({} if self.prompts == "plain" else {"prompts": self.prompts})

    def item(self, index: int) -> Item:
        """Returns the item at an index."""
        return self.task.item(self.seed, index, "test", difficulty=self.difficulty)

    def chat(self, index: int) -> list[Message]:
        """Returns the chat that asks the question of an item."""
        question, rng = self.item(index).question, Random(f"{self.seed} {index} {self.prompts}")
        return self.task.chat(question, self.prompts, rng, self.difficulty)


@dataclass(frozen=True, kw_only=True)
class ValidationItems(TaskItems):
    """Test items of a seed, except questions among the first `scored_items` of the seed that is
    used for scores. Raises ValueError if both seeds are equal, and as `TaskItems`."""

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
        """The sequence of items, and the questions left out of it."""
        without = {"seed": self.scored_seed, "items": self.scored_items}
        return {**super().settings, "without": without}

    def item(self, index: int) -> Item:
        """Returns the item at an index, counted without the left-out questions."""
        require(index >= 0, f"index is {index}; allowed: 0 or more")
        self._drawn.extend(islice(self._remaining, max(0, index + 1 - len(self._drawn))))
        return self._drawn[index]

    @cached_property
    def _drawn(self) -> list[Item]:
        return []

    @cached_property
    def _remaining(self) -> Iterator[Item]:
        scored = self.task.items(self.scored_seed, "test", difficulty=self.difficulty)
        questions = {item.question for item in islice(scored, self.scored_items)}
        items = self.task.items(self.seed, "test", difficulty=self.difficulty)
        return (item for item in items if item.question not in questions)
