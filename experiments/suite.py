"""Many decoders on many tasks, in one table: `python -m experiments.evaluate suite=decoding`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tqdm import tqdm

from experiments.cell import Cell, TaskConfig
from experiments.judged import Judged, difference_rows, pooled_rows
from experiments.results import ResultRow
from experiments.run import Run
from llada_jax.config import SamplerConfig, require
from llada_jax.evaluation.metrics import paired
from llada_jax.evaluation.tasks import load_task


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """A decoder by name. Its lengths are those of each task."""

    name: str
    sampler: SamplerConfig

    def sampler_for(self, gen_length: int) -> SamplerConfig:
        """Where tokens are committed by number, one in each step."""
        return self.sampler.replace(gen_length=gen_length, steps=gen_length)


@dataclass(frozen=True, kw_only=True)
class SuiteConfig:
    """What a suite compares, on the first items of each task. The first decoder is the baseline."""

    name: str
    tasks: tuple[str, ...]
    decoders: tuple[DecoderConfig, ...]

    def __post_init__(self) -> None:
        names = [decoder.name for decoder in self.decoders]
        require(len(names) > 0, "decoders is empty; allowed: one or more")
        require(len(set(names)) == len(names), f"decoders are {names}; allowed: each name once")
        require(len(self.tasks) > 0, "tasks is empty; allowed: one or more")
        for task in self.tasks:
            for decoder in self.decoders:
                _ = decoder.sampler_for(load_task(task).gen_length)  # which checks both


def evaluate_suite(suite: SuiteConfig, cell: Cell, run: Run) -> list[ResultRow]:
    """Each decoder's score over all tasks, then its score on each.

    Args:
      cell: everything else, items included; its task and its sampler give way to the suite's.
    """
    model = cell.load()
    cells = {
        (decoder.name, task): _cell(cell, decoder, task)
        for decoder in suite.decoders
        for task in suite.tasks
    }
    stores = {
        key: each.store(run.folder / "cells" / "-".join(key), model) for key, each in cells.items()
    }
    run.begin()
    found = {
        key: cells[key].decode(model, stores[key])
        for key in tqdm(cells, desc=suite.name, unit="cell")
    }
    baseline = suite.decoders[0].name
    rows: list[ResultRow] = []
    for decoder in suite.decoders:
        parts = [found[decoder.name, task] for task in suite.tasks]
        before = [found[baseline, task] for task in suite.tasks]
        rows += pooled_rows(f"{suite.name}/{decoder.name}", parts)
        if decoder.name != baseline:
            rows += _difference(f"{suite.name}/{decoder.name}/against/{baseline}", before, parts)
    for (decoder, task), part in found.items():
        rows += pooled_rows(f"{suite.name}/{decoder}/{task}", [part])
    return rows


def _cell(cell: Cell, decoder: DecoderConfig, name: str) -> Cell:
    task = load_task(name)
    items = TaskConfig(
        name=name,
        seed=cell.task.seed,
        items=cell.task.items,
        difficulty=task.default_difficulty,
        gen_length=task.gen_length,
    )
    sampler = decoder.sampler_for(task.gen_length)
    return replace(cell, task=items, sampler=sampler, sampler_name=decoder.name)


def _difference(
    name: str, before: Sequence[Judged], after: Sequence[Judged]
) -> tuple[ResultRow, ResultRow]:
    """Of exact match on the same items, and whether it could be chance."""
    pairs = [
        (old.right[index], right)
        for old, new in zip(before, after, strict=True)
        for index, right in new.right.items()
    ]
    result = paired(*map(list, zip(*pairs, strict=True)))
    return difference_rows(name, result, len(pairs))
