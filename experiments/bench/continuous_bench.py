"""The suite `continuous`: the items of a task as one stream, against batch after batch, of which
each runs until its slowest item is done.

Both take turns and give the same answers. Useful forwards are those in which a place of the batch
had an item that was not done. Seconds of the processor tell more than the clock where other
processes run.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from operator import eq
from time import perf_counter, process_time
from typing import NamedTuple

import llada_jax as lj
from experiments.bench.spread import spread
from experiments.harness.results import ResultRow
from llada_jax.config import SamplerConfig, require, require_counts
from llada_jax.evaluation.harness import PLACES, lengthened
from llada_jax.evaluation.items import TaskItems
from llada_jax.evaluation.tasks import load_task


@dataclass(frozen=True, kw_only=True)
class ContinuousBenchConfig:
    """What the suite decodes. The comments are in conf/bench.yaml."""

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
        """Returns a preset with the length of the task's answers, which stops with them."""
        return lengthened(SamplerConfig.preset(name, eos_early_stop=True), load_task(self.task))


class Decoded(NamedTuple):
    """What one way of decoding all items came to."""

    answers: list[list[int]]
    useful: float
    seconds: float
    processor: float


def time_continuous(model: lj.Model, config: ContinuousBenchConfig) -> Iterator[ResultRow]:
    """Yields, for each sampler, the share of useful forwards, items a minute, and the ratios."""
    items = TaskItems(task=load_task(config.task), count=config.items)
    questions = [items.item(place).question for place in range(config.items)]
    assert model.tokenizer is not None
    encode = model.tokenizer.encode_chat
    prompts = [encode([{"role": "user", "content": question}]) for question in questions]
    for name in config.samplers:
        decode = partial(_decoded, model, prompts, config.sampler(name))
        ways = {"batches": partial(decode, config.batch, stream=False)}
        ways |= {f"places_{each}": partial(decode, each, stream=True) for each in config.places}
        for way in ways.values():
            way()  # compiles
        turns = [{name: way() for name, way in ways.items()} for _ in range(config.turns)]
        for way in ways:
            yield from _rows(f"continuous/{name}/{way}", way, turns)


def _decoded(
    model: lj.Model, prompts: list[list[int]], sampler: SamplerConfig, size: int, *, stream: bool
) -> Decoded:
    """Decodes all prompts, `size` at a time."""
    processor, began = process_time(), perf_counter()
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
    return Decoded(answers, useful, perf_counter() - began, process_time() - processor)


def _rows(name: str, way: str, turns: list[dict[str, Decoded]]) -> Iterator[ResultRow]:
    """Yields what one way came to, against the batches of the same turn."""
    found, batches = turns[0][way], turns[0]["batches"]
    yield ResultRow(f"{name}/useful", found.useful, "of forwards")
    seconds = statistics.median(turn[way].seconds for turn in turns)
    yield ResultRow(f"{name}/speed", 60 * len(found.answers) / seconds, "items/min")
    if way == "batches":
        return
    same = statistics.fmean(map(eq, found.answers, batches.answers))
    yield ResultRow(f"{name}/same_answers", same, "of items")
    for what in ("seconds", "processor"):
        ratios = [getattr(turn["batches"], what) / getattr(turn[way], what) for turn in turns]
        yield from spread(f"{name}/{what}", ratios, "x faster")
