"""Which items of a task are asked: to score a decoder, or to choose its settings on others."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from llada_jax.config import require
from llada_jax.evaluation.task import Item, Task


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
