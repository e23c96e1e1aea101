"""What a sampler is worth: right answers to items, and what an answer takes."""

import hashlib
import json
import math
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import llada_jax as lj
from experiments.evaluate.result_rows import workloads
from experiments.harness.timers import times_in_turns
from experiments.tune.settings import HERE, TuneConfig
from llada_jax.config import require
from llada_jax.evaluation.evaluate import Trial, with_answer_length
from llada_jax.evaluation.graded import Evaluation, compared
from llada_jax.evaluation.metrics import PairedComparison
from llada_jax.evaluation.tally import Tally, joined
from llada_jax.evaluation.task import TaskItems
from llada_jax.phones.workload import Workload
from llada_jax.sampler.config import SamplerConfig

_ROUNDS = 7


class Price(NamedTuple):
    """What an answer takes, on average: modelled on a phone, or measured here."""

    seconds: float
    joules: float
    """NaN where it is measured here."""


class Judged(NamedTuple):
    """A sampler with its answers."""

    sampler: SamplerConfig
    parts: tuple[Evaluation, ...]
    """One for each task."""

    @property
    def tally(self) -> Tally:
        """Counts the questions of all tasks."""
        return joined([part.tally for part in self.parts])

    def against(self, other: "Judged") -> PairedComparison:
        """Compares with another sampler on the items that both have, which its answers begin."""
        return compared(self.parts, other.parts)


@dataclass(frozen=True, eq=False)
class Judge:
    """Decodes items of all tasks, each once, and prices the answers."""

    config: TuneConfig
    model: lj.Model
    folder: Path
    """Where the answers are kept, by sampler: a search that goes on reads them."""

    def searched(self, sampler: SamplerConfig) -> Iterator[Judged]:
        """Yields a sampler with ever more of the items that settings are chosen by."""
        at_once, count, items = self.config.at_once, self.config.items, self.config.searched
        for size in range(at_once, count + at_once, at_once):
            yield self._judged(sampler, items, min(size, count))

    def confirmed(self, sampler: SamplerConfig) -> Judged:
        """Returns a sampler with all items that confirm."""
        return self._judged(sampler, self.config.confirmed, self.config.confirm_items)

    def price(self, judged: Judged, planner: str | None = None) -> Price:
        """Returns what an answer takes; on a phone, with a planner of its address space. Raises
        ValueError where nothing that was measured here is without compilation."""
        if self.config.phone != HERE:
            runs = [run for part in judged.parts for run in workloads(part, self.config.shape)]
            return modelled_price(self._phone, self.config.shape, runs, planner)
        warm = [batch for part in judged.parts for batch in part.timed if not batch.compiled]
        require(len(warm) > 0, "items are all decoded while programs compile; allowed: more items")
        answers = sum(len(batch.generations) for batch in warm)
        return Price(sum(batch.seconds for batch in warm) / answers, math.nan)

    def prices(self, judged: Mapping[str, Judged]) -> dict[str, Price]:
        """Returns what the answers of several samplers take. Here, they take turns with the first
        items, since a machine's pace changes; the median of some rounds counts."""
        if self.config.phone != HERE:
            return {name: self.price(each) for name, each in judged.items()}
        items = self.config.confirmed
        ways = {name: partial(self._answer, each.sampler, items) for name, each in judged.items()}
        turns, answers = times_in_turns(ways, _ROUNDS), len(items) * self.config.at_once
        prices = {name: statistics.median(seconds) / answers for name, seconds in turns.items()}
        return {name: Price(seconds, math.nan) for name, seconds in prices.items()}

    def _answer(self, sampler: SamplerConfig, items: Sequence[TaskItems]) -> None:
        for each in items:
            deque(self._trial(sampler, each).answers(range(self.config.at_once)), maxlen=0)

    @cached_property
    def _phone(self) -> lj.Phone:
        return lj.phone(self.config.phone)

    def _judged(self, sampler: SamplerConfig, items: Sequence[TaskItems], count: int) -> Judged:
        parts = []
        for each in items:
            trial = self._trial(sampler, replace(each, count=count))
            folder = self.folder / f"{each.task.name}-{each.seed}-{trial.sampler_name}"
            parts.append(trial.run(trial.store(folder), progress=False))
        return Judged(sampler, tuple(parts))

    def _trial(self, sampler: SamplerConfig, items: TaskItems) -> Trial:
        fitting = with_answer_length(sampler, items.task)
        return Trial(
            model=self.model, dtype=self.config.dtype, items=items, sampler_name=named(fitting),
            sampler=fitting, backend=self.config.backend, batch_size=self.config.at_once,
            places=self.config.places,
        )  # fmt: skip


def named(sampler: SamplerConfig) -> str:
    """Names a sampler by all of its settings."""
    return digest(json.dumps(sampler.as_dict(), sort_keys=True))


def digest(text: str) -> str:
    """Returns twelve letters that stand for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def modelled_price(
    phone: lj.Phone, shape: str, runs: Sequence[Workload], planner: str | None = None
) -> Price:
    """Returns what a run takes on average on a phone as warm as its published sessions."""
    forwards = tuple(forward for run in runs for forward in run.forwards)
    whole = Workload(forwards, max(run.canvas for run in runs), 0, runs[0].source)
    if planner is None:
        found = phone.simulated(whole, phone.timer(shape, whole.canvas))
    else:
        found = phone.time(whole, shape, planner=planner)
    return Price(found.seconds / len(runs), found.energy.joules / len(runs))
