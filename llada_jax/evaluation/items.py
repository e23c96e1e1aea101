"""Items to choose settings on, none of which is among those that are scored."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from experiments.evaluate.cell import TaskConfig
from llada_jax.config import require
from llada_jax.evaluation.task import Item


@dataclass(frozen=True, kw_only=True)
class ValidationItems(TaskConfig):
    """Test items of a seed, less those whose question is among the first `scored_items` of the seed
    that is scored."""

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
        without = {"seed": self.scored_seed, "items": self.scored_items}
        return {**super().settings, "without": without}

    def item(self, index: int) -> Item:
        """The item at a place among those that are left."""
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
