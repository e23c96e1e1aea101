"""Answers of a decoder, graded: scores, their intervals, and differences between two decoders."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from llada_jax.evaluation.metrics import Interval, Paired, paired
from llada_jax.evaluation.stored import require_object
from llada_jax.evaluation.tally import Tally, asked_first, tally
from llada_jax.evaluation.task import Task
from llada_jax.evaluation.tasks import load_task
from llada_jax.evaluation.trajectory import Trajectory

GENERATIONS = "generations"
"""The folder, in that of a run, where its answers are stored."""
_SETTINGS = {"model": str, "task": dict, "sampler_name": str, "backend": str}
_TASK = {"name": str, "version": int, "difficulty": int, "seed": int}


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation:
    """The answers of one decoder to items of one task, and which of them are right."""

    store: GenerationStore | GenerationMemory
    """Where the answers and the traces are."""
    batches: tuple[GenerationBatch, ...]
    """Answers that were decoded together, in the order of their items."""
    right: Mapping[int, bool]
    """Whether an item was answered right, by its place."""
    timed: tuple[GenerationBatch, ...]
    """The batches that are whole: of a part of one, nobody knows the seconds."""
    against: Paired | None = None
    """The difference to the baseline, where one was given."""

    @classmethod
    def load(
        cls, folder: str | Path, items: int | None = None, task: Task | None = None
    ) -> "Evaluation":
        """Grades the answers in the folder of a run anew; with `items`, only the first ones.

        Raises FileNotFoundError where the folder has no generations, and ValueError where they are
        damaged, of another version, or none yet.
        """
        store = GenerationStore.load(Path(folder) / GENERATIONS)
        path = store.folder / SETTINGS
        require_object(require_object(store.settings, path, _SETTINGS)["task"], path, _TASK)
        found = graded(store, task or load_task(store.settings["task"]["name"]), items)
        require(bool(found.batches), f"{folder} has no generations yet; allowed: one batch or more")
        return found

    @property
    def settings(self) -> Mapping[str, Any]:
        """Returns what the answers depend on, as plain JSON."""
        return self.store.settings

    @property
    def generations(self) -> list[Generation]:
        """Returns all answers, in the order of their items."""
        return [generation for batch in self.batches for generation in batch.generations]

    @property
    def counted(self) -> dict[int, bool]:
        """Returns `right` without the items that ask a question again."""
        return {each.index: self.right[each.index] for each in asked_first(self.generations)}

    @property
    def name(self) -> str:
        """Names task, sampler, and what else is not as usual: `choices/threshold/tiles/q4_0`."""
        told = self.settings
        names = told["task"]["name"], told["sampler_name"], told["backend"], told.get("tiles")
        return "/".join(name for name in names if name not in (None, "xla"))

    @cached_property
    def tally(self) -> Tally:
        """Counts the questions, each once however often it is asked."""
        block_length = self.settings.get("sampler", {}).get("block_length")
        return tally(self.generations, self.right, block_length, self.rows)

    @cached_property
    def rows(self) -> dict[int, int]:
        """Returns how many rows the forwards of each item had, those of a worker's refreshes not
        counted; nothing unless all traces were kept."""
        rows = {
            generation.index: int(trace.live_rows[:, row].sum())
            for batch, trace in self.store.traces()
            for row, generation in enumerate(batch.generations)
        }
        return rows if rows.keys() >= self.right.keys() else {}

    @property
    def score(self) -> float:
        """Returns the share of questions answered right (exact match), 0 to 1."""
        return self.tally.exact_match

    @property
    def interval(self) -> Interval:
        """Returns Wilson's 95 % interval of the score."""
        return self.tally.interval

    @property
    def nfe(self) -> float:
        """Returns the mean number of forwards a question."""
        return self.tally.nfe

    @property
    def tpf(self) -> float:
        """Returns answer tokens a forward."""
        return self.tally.tpf

    def __repr__(self) -> str:
        low, high = self.interval
        shown = (
            f"{self.name}: {self.score:.1%} of {len(self.tally.right)} questions ({low:.1%} to "
            f"{high:.1%}), {self.nfe:.1f} forwards, {self.tpf:.2f} tokens/forward"
        )
        if self.against is not None:
            points = f"{100 * self.against.difference:+.1f} points"
            shown += f"; {points} against the baseline, p {self.against.p_value:.2g}"
        return f"Evaluation({shown})"

    def trajectories(self) -> Iterator[Trajectory]:
        """Yields how each batch was decoded, where its trace was kept: of an empty answer its first
        place. Raises as `Trajectory`."""
        for batch, trace in self.store.traces():
            lengths = np.array([max(each.length, 1) for each in batch.generations])
            yield Trajectory(trace, lengths)

    def require_items(self, task: Mapping[str, Any], indices: Iterable[int], whose: str) -> None:
        """Raises ValueError unless this baseline has items of the same sequence at these places."""
        theirs = self.settings["task"]
        require(theirs == task, f"the baseline's task is {theirs}; allowed: the same items, {task}")
        lacking = sorted({*indices} - self.right.keys())[:3]
        told = f"the baseline, {self.store}, lacks items {lacking} that {whose} has"
        require(not lacking, f"{told}; allowed: a baseline with all of them")

    def compared_with(self, baseline: "Evaluation") -> "Evaluation":
        """Returns this evaluation with its difference to a baseline, question by question. Raises
        ValueError where the baseline's items are others, or fewer."""
        baseline.require_items(self.settings["task"], self.right, str(self.store))
        return replace(self, against=compared([self], [baseline]))


def compared(parts: Sequence[Evaluation], baseline: Sequence[Evaluation]) -> Paired:
    """Compares answers to several tasks with a baseline's, which has all of their items."""
    pairs = [
        (before.right[index], right)
        for part, before in zip(parts, baseline, strict=True)
        for index, right in part.counted.items()
    ]
    return paired([old for old, _ in pairs], [new for _, new in pairs])


def graded(
    store: GenerationStore | GenerationMemory, task: Task, items: int | None = None
) -> Evaluation:
    """Grades the answers of a store; with `items`, only those to the first ones."""
    batches, timed = [], []
    for whole in store.batches():
        kept = [each for each in whole.generations if items is None or each.index < items]
        if kept:
            batches.append(whole._replace(generations=kept))
        if len(kept) == len(whole.generations):
            timed.append(whole)
    right = {g.index: task.verify(g.item, g.text) for batch in batches for g in batch.generations}
    return Evaluation(store, tuple(batches), right, tuple(timed))
