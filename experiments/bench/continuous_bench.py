"""The suite `continuous`: continuous batching against batches that wait for their slowest item.

Both decode the items of a task, in alternation, and give the same answers. A forward is useful for
a place of the batch if the item there is unfinished.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from operator import eq
from typing import NamedTuple

import llada_jax as lj
from experiments.harness.questions import prompts_of
from experiments.harness.results import ResultRow
from experiments.harness.timers import Timing, in_turns, spread
from llada_jax.config import require, require_counts
from llada_jax.evaluation.evaluate import PLACES, with_answer_length
from llada_jax.evaluation.task import TaskItems
from llada_jax.evaluation.tasks import load_task
from llada_jax.sampler.config import SamplerConfig


@dataclass(frozen=True, kw_only=True)
class ContinuousBenchConfig:
    """Settings of the verb; conf/bench.yaml explains each."""

    task: str = "word_problems"
    items: int = 200
    samplers: tuple[str, ...] = ("threshold", "llada_cpp")
    batch: int = 50
    places: tuple[int, ...] = (PLACES,)
    turns: int = 3

    def __post_init__(self) -> None:
        require_counts(self, "items", "batch")
        require_counts(self, "turns", least=2)
        least = min(self.places, default=0)
        require(least > 0, f"places is {list(self.places)}; allowed: numbers from 1 on")
        _ = [self.sampler(name) for name in self.samplers]

    def sampler(self, name: str) -> SamplerConfig:
        """Returns a preset with the task's answer length, which stops at the end of an answer."""
        return with_answer_length(
            SamplerConfig.preset(name, eos_early_stop=True), load_task(self.task)
        )


class _Decoded(NamedTuple):
    """The answers of one way of decoding, and its share of useful forwards."""

    answers: list[list[int]]
    useful: float


def time_continuous(model: lj.Model, config: ContinuousBenchConfig) -> Iterator[ResultRow]:
    """Yields the share of useful forwards, items per minute, and ratios, for each sampler."""
    items = TaskItems(task=load_task(config.task), count=config.items)
    prompts = prompts_of(model, (items.item(index).question for index in range(config.items)))
    for name in config.samplers:
        decode = partial(_decoded, model, prompts, config.sampler(name))
        ways = {"batches": partial(decode, config.batch, stream=False)}
        ways |= {f"places_{n}": partial(decode, n, stream=True) for n in config.places}
        found, times = in_turns(ways, config.turns)
        for way in ways:
            yield from _rows(f"continuous/{name}/{way}", way, found, times)


def _decoded(
    model: lj.Model, prompts: list[list[int]], sampler: SamplerConfig, size: int, *, stream: bool
) -> _Decoded:
    """Decodes all prompts, `size` at a time."""
    seeds = [*range(len(prompts))]
    if stream:
        results = lj.generate_stream(model, prompts, sampler, places=size, seed=seeds)
        found = [*results]
        useful = results.useful
    else:
        parts = [seeds[start : start + size] for start in seeds[::size]]
        found = [
            lj.generate(model, [prompts[i] for i in part], sampler, seed=part, trace=True)
            for part in parts
        ]
        offered = sum(each.trace.live_rows.size for each in found)
        useful = sum(int(each.nfe.sum()) for each in found) / offered
    answers = [ids.tolist() for each in found for ids in each.generated]
    return _Decoded(answers, useful)


def _rows(
    name: str, way: str, found: dict[str, _Decoded], times: dict[str, list[Timing]]
) -> Iterator[ResultRow]:
    """Yields the results of one way, and its ratios to the batches of the same round."""
    answers, useful = found[way]
    yield ResultRow(f"{name}/useful", useful, "of forwards")
    seconds = statistics.median(took.seconds for took in times[way])
    yield ResultRow(f"{name}/speed", 60 * len(answers) / seconds, "items/min")
    if way == "batches":
        return
    same = statistics.fmean(map(eq, answers, found["batches"].answers))
    yield ResultRow(f"{name}/same_answers", same, "of items")
    for what in Timing._fields:
        pairs = zip(times["batches"], times[way], strict=True)
        ratios = [getattr(a, what) / getattr(b, what) for a, b in pairs]
        yield from spread(f"{name}/{what}", ratios, "x faster")
