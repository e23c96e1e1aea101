"""Judges a sampler: its answers to the items of all tasks, and the time and energy of an answer."""

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
    """Mean cost of an answer, modelled for a phone or measured here."""

    seconds: float
    joules: float
    """NaN if measured here."""


class Judged(NamedTuple):
    """A sampler with its graded answers."""

    sampler: SamplerConfig
    parts: tuple[Evaluation, ...]
    """An evaluation for each task."""

    @property
    def tally(self) -> Tally:
        """Counts over the questions of all tasks."""
        return joined([part.tally for part in self.parts])

    def against(self, other: "Judged") -> PairedComparison:
        """Compares with another sampler on the items that both have answered."""
        return compared(self.parts, other.parts)


@dataclass(frozen=True, eq=False)
class Judge:
    """Decodes and grades the items of all tasks, each once, and computes prices."""

    config: TuneConfig
    model: lj.Model
    folder: Path
    """Folder of the answers, by sampler, which a resumed search reads."""

    def searched(self, sampler: SamplerConfig) -> Iterator[Judged]:
        """Yields a sampler's answers to a growing number of the search's items."""
        at_once, count, items = self.config.at_once, self.config.items, self.config.searched
        for size in range(at_once, count + at_once, at_once):
            yield self._judged(sampler, items, min(size, count))

    def confirmed(self, sampler: SamplerConfig) -> Judged:
        """Returns a sampler's answers to all items of the confirmation."""
        return self._judged(sampler, self.config.confirmed, self.config.confirm_items)

    def price(self, judged: Judged, planner: str | None = None) -> Price:
        """Returns the price of an answer; on a phone, optionally with a planner of its address
        space. Raises ValueError if every batch measured here includes compilation."""
        if self.config.phone != HERE:
            runs = [run for part in judged.parts for run in workloads(part, self.config.shape)]
            return modelled_price(self._phone, self.config.shape, runs, planner)
        warm = [batch for part in judged.parts for batch in part.timed if not batch.compiled]
        require(len(warm) > 0, "items are all decoded while programs compile; allowed: more items")
        answers = sum(len(batch.generations) for batch in warm)
        return Price(sum(batch.seconds for batch in warm) / answers, math.nan)

    def prices(self, judged: Mapping[str, Judged]) -> dict[str, Price]:
        """Returns the prices of several samplers. Measured here, they answer the first items in
        alternation, because a machine's speed changes; the median of the rounds counts."""
        if self.config.phone != HERE:
            return {name: self.price(answers) for name, answers in judged.items()}
        items = self.config.confirmed
        ways = {name: partial(self._answer, a.sampler, items) for name, a in judged.items()}
        turns, answers = times_in_turns(ways, _ROUNDS), len(items) * self.config.at_once
        prices = {name: statistics.median(seconds) / answers for name, seconds in turns.items()}
        return {name: Price(seconds, math.nan) for name, seconds in prices.items()}

    def _answer(self, sampler: SamplerConfig, items: Sequence[TaskItems]) -> None:
        for of_task in items:
            deque(self._trial(sampler, of_task).answers(range(self.config.at_once)), maxlen=0)

    @cached_property
    def _phone(self) -> lj.Phone:
        return lj.phone(self.config.phone)

    def _judged(self, sampler: SamplerConfig, items: Sequence[TaskItems], count: int) -> Judged:
        parts = []
        for of_task in items:
            trial = self._trial(sampler, replace(of_task, count=count))
            folder = self.folder / f"{of_task.task.name}-{of_task.seed}-{trial.sampler_name}"
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
    """Returns a name that depends on all settings of a sampler."""
    return digest(json.dumps(sampler.as_dict(), sort_keys=True))


def digest(text: str) -> str:
    """Returns a hash of a text, twelve hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def modelled_price(
    phone: lj.Phone, shape: str, runs: Sequence[Workload], planner: str | None = None
) -> Price:
    """Returns the mean price of runs on a phone as warm as in its published sessions."""
    forwards = tuple(forward for run in runs for forward in run.forwards)
    whole = Workload(forwards, max(run.canvas for run in runs), 0, runs[0].source)
    if planner is None:
        found = phone.simulated(whole, phone.timer(shape, whole.canvas))
    else:
        found = phone.time(whole, shape, planner=planner)
    return Price(found.seconds / len(runs), found.energy.joules / len(runs))
