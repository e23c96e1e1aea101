"""Grades a decoder's stored answers: scores, confidence intervals, comparison with a baseline.

Grades are not stored. They are computed from the answers whenever a folder is loaded, so that a
corrected verifier applies to old runs. An `Evaluation` combines the answers of one decoder with
their grades; a baseline is compared question by question, which needs far fewer items than
comparing two separate scores.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from llada_jax.config import require
from llada_jax.evaluation.generations import (
    SETTINGS,
    Generation,
    GenerationBatch,
    GenerationMemory,
    GenerationStore,
)
from llada_jax.evaluation.metrics import Interval, PairedComparison, paired
from llada_jax.evaluation.stored import require_object
from llada_jax.evaluation.tally import Tally, tally, unique_questions
from llada_jax.evaluation.task import Task
from llada_jax.evaluation.tasks import load_task
from llada_jax.evaluation.trajectory import Trajectory

GENERATIONS = "generations"
"""Name of the folder with the answers, inside the folder of a run."""
_SETTINGS = {"model": str, "task": dict, "sampler_name": str, "backend": str}
_TASK = {"name": str, "version": int, "difficulty": int, "seed": int}


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation:
    """The answers of one decoder to items of one task, and whether each is right."""

    store: GenerationStore | GenerationMemory
    """The answers and the traces."""
    batches: tuple[GenerationBatch, ...]
    """Answers that were decoded together, in the order of their items."""
    right: Mapping[int, bool]
    """Whether an item was answered right, by the item's index."""
    timed: tuple[GenerationBatch, ...]
    """The batches that are complete, because a batch's time cannot be split between its items."""
    strict: Mapping[int, bool] = field(default_factory=dict)
    """Whether an item was answered right in every word (`Task.strict`), by the item's index; empty
    if the task cannot tell."""
    against: PairedComparison | None = None
    """The comparison with the baseline, or None if none was given."""

    @classmethod
    def load(
        cls, folder: str | Path, items: int | None = None, task: Task | None = None
    ) -> "Evaluation":
        """Grades the answers in the folder of a run again, or only those to the first `items`.

        Raises FileNotFoundError if the folder has no store, and ValueError if the store is damaged,
        of another version or empty.
        """
        store = GenerationStore.load(Path(folder) / GENERATIONS)
        path = store.folder / SETTINGS
        require_object(require_object(store.settings, path, _SETTINGS)["task"], path, _TASK)
        evaluation = graded(store, task or load_task(store.settings["task"]["name"]), items)
        require(
            bool(evaluation.batches), f"{folder} has no generations yet; allowed: one batch or more"
        )
        return evaluation

    @property
    def settings(self) -> Mapping[str, Any]:
        """Everything that the answers depend on, as plain JSON."""
        return self.store.settings

    @property
    def generations(self) -> list[Generation]:
        """All answers, in the order of their items."""
        return [generation for batch in self.batches for generation in batch.generations]

    @property
    def answers(self) -> dict[int, list[int]]:
        """Token ids of the answers, with the token that ends them, by the item's index."""
        return {g.index: g.tokens[: g.length] for g in self.generations}

    @property
    def counted(self) -> dict[int, bool]:
        """`right` without the items that repeat a question."""
        return {
            generation.index: self.right[generation.index]
            for generation in unique_questions(self.generations)
        }

    @property
    def name(self) -> str:
        """Task, sampler, and what is not the default of prompts, backend and tiles, as in
        `choices/held_out/threshold/q4_0`."""
        settings, task = self.settings, self.settings["task"]
        others = map(settings.get, ("sampler_name", "backend", "tiles"))
        names = (task["name"], task.get("prompts"), *others)
        return "/".join(name for name in names if name not in (None, "xla"))

    @cached_property
    def tally(self) -> Tally:
        """The counts over questions, each counted once even if several items ask it."""
        block_length = self.settings.get("sampler", {}).get("block_length")
        return tally(self.generations, self.right, block_length, self.rows, self.strict)

    @cached_property
    def rows(self) -> dict[int, int]:
        """The number of rows in all forward passes of each item, without a worker's refreshes;
        empty unless all traces were stored."""
        rows = {
            generation.index: int(trace.live_rows[:, row].sum())
            for batch, trace in self.store.traces()
            for row, generation in enumerate(batch.generations)
        }
        return rows if rows.keys() >= self.right.keys() else {}

    @property
    def score(self) -> float:
        """The share of questions answered right (exact match), 0 to 1."""
        return self.tally.exact_match

    @property
    def interval(self) -> Interval:
        """Wilson's 95 % confidence interval of the score."""
        return self.tally.interval

    @property
    def strict_score(self) -> float | None:
        """The share of questions answered right in every word (strict match), 0 to 1; None if the
        task cannot tell."""
        return self.tally.strict_match

    @property
    def nfe(self) -> float:
        """The mean number of forward passes per question."""
        return self.tally.nfe

    @property
    def tpf(self) -> float:
        """Answer tokens per forward pass."""
        return self.tally.tpf

    def __repr__(self) -> str:
        low, high = self.interval
        text = (
            f"{self.name}: {self.score:.1%} of {len(self.tally.right)} questions ({low:.1%} to "
            f"{high:.1%}), {self.nfe:.1f} forwards, {self.tpf:.2f} tokens/forward"
        )
        if self.strict_score is not None:
            text += f", {self.strict_score:.1%} right in every word"
        if self.against is not None:
            points = f"{100 * self.against.difference:+.1f} points"
            text += f"; {points} against the baseline, p {self.against.p_value:.2g}"
        return f"Evaluation({text})"

    def trajectories(self) -> Iterator[Trajectory]:
        """Yields the decoding of each batch that has a stored trace. An empty answer counts as one
        position. Raises as `Trajectory`."""
        for batch, trace in self.store.traces():
            lengths = np.array([max(generation.length, 1) for generation in batch.generations])
            yield Trajectory(trace, lengths)

    def require_items(self, task: Mapping[str, Any], indices: Iterable[int], whose: str) -> None:
        """Raises ValueError unless this baseline has the items at these indices of the task."""
        own_task = self.settings["task"]
        require(
            own_task == task, f"the baseline's task is {own_task}; allowed: the same items, {task}"
        )
        missing = sorted({*indices} - self.right.keys())[:3]
        require(
            not missing,
            f"the baseline, {self.store}, lacks items {missing} that {whose} has; allowed: a "
            "baseline with all of them",
        )

    def compared_with(self, baseline: "Evaluation") -> "Evaluation":
        """Returns this evaluation with `against` set to its comparison with a baseline. Raises
        ValueError if the baseline's items differ or are fewer."""
        baseline.require_items(self.settings["task"], self.right, str(self.store))
        return replace(self, against=compared([self], [baseline]))


def compared(
    parts: Sequence[Evaluation], baseline: Sequence[Evaluation], strict: bool = False
) -> PairedComparison:
    """Compares the answers to several tasks with a baseline's, question by question; with `strict`
    only answers count that are right in every word, which all tasks must be able to tell."""
    pairs = [
        (before.strict[index], part.strict[index]) if strict else (before.right[index], right)
        for part, before in zip(parts, baseline, strict=True)
        for index, right in part.counted.items()
    ]
    return paired([old for old, _ in pairs], [new for _, new in pairs])


def graded(
    store: GenerationStore | GenerationMemory, task: Task, items: int | None = None
) -> Evaluation:
    """Grades the answers of a store, or only those to the first `items`."""
    batches, timed = [], []
    for batch in store.batches():
        kept = [g for g in batch.generations if items is None or g.index < items]
        if kept:
            batches.append(batch._replace(generations=kept))
        if len(kept) == len(batch.generations):
            timed.append(batch)
    answers = [g for batch in batches for g in batch.generations]
    grades = {g.index: task.grade(g.item, g.text) for g in answers}
    right = {index: is_right for index, (is_right, _) in grades.items()}
    strict = {index: each for index, (_, each) in grades.items() if each is not None}
    return Evaluation(store, tuple(batches), right, tuple(timed), strict)
