"""What a decoder answered, judged: scores, speed, and differences between two decoders."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.evaluate.score import Score, asked_first, joined, score
from experiments.harness.on_phones import as_if_llada_8b, mean_latency
from experiments.harness.results import ResultRow
from llada_jax.config import require
from llada_jax.evaluation.generations import SETTINGS, Batch, Generation, GenerationStore
from llada_jax.evaluation.metrics import Paired, paired
from llada_jax.evaluation.stored import require_object
from llada_jax.evaluation.tasks import load_task
from llada_jax.phone.workload import Workload

GENERATIONS = "generations"
CELLS = "cells"  # of a suite's run: a folder with generations for each decoder and task
_SETTINGS = {"model": str, "task": dict, "sampler_name": str, "backend": str}
_TASK = {"name": str, "version": int, "difficulty": int, "seed": int}


class Judged(NamedTuple):
    """The generations of a decoder, and which of them are right."""

    store: GenerationStore
    batches: list[Batch]
    right: dict[int, bool]  # by index of the item
    timed: list[Batch]  # those that are whole: of a part of one, nobody knows the seconds

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the generations depend on."""
        return self.store.settings

    @property
    def generations(self) -> list[Generation]:
        return [generation for batch in self.batches for generation in batch.generations]

    @property
    def counted(self) -> dict[int, bool]:
        """`right` without the items that ask a question again."""
        return {each.index: self.right[each.index] for each in asked_first(self.generations)}

    @property
    def name(self) -> str:
        """`word_problems/threshold`, with what else is not as usual: the backend, the weights."""
        parts = [self.settings["task"]["name"], self.settings["sampler_name"]]
        backend, tiles = self.settings["backend"], self.settings.get("tiles")
        parts += [] if backend == "xla" else [backend]
        return "/".join([*parts, tiles] if tiles else parts)


def judged(folder: Path, items: int | None = None) -> Judged:
    """The generations of a run, judged anew; with `items`, only of the first ones."""
    store = GenerationStore.load(folder / GENERATIONS)
    path = store.folder / SETTINGS
    require_object(require_object(store.settings, path, _SETTINGS)["task"], path, _TASK)
    task = load_task(store.settings["task"]["name"])
    stored = store.batches()
    require(len(stored) > 0, f"{folder} has no generations yet; allowed: at least one batch")
    batches = [first_items(batch, items) for batch in stored]
    timed = [whole for whole, part in zip(stored, batches, strict=True) if part == whole]
    batches = [batch for batch in batches if batch.generations]
    right = {g.index: task.verify(g.item, g.text) for batch in batches for g in batch.generations}
    return Judged(store, batches, right, timed)


def first_items(batch: Batch, items: int | None) -> Batch:
    """Of a batch what belongs to the first items; all of it where `items` is None."""
    kept = [each for each in batch.generations if items is None or each.index < items]
    return batch._replace(generations=kept)


def score_rows(found: Judged) -> list[ResultRow]:
    """Quality and speed of one decoder on one task."""
    return decoder_rows(found.name, [found])


def decoder_rows(name: str, parts: Sequence[Judged], socs: Sequence[str] = ()) -> list[ResultRow]:
    """Quality and latency on phones over all questions of all parts; speed over all items."""
    return [
        *rows_of_score(name, score_of(parts)),
        *speed_rows(name, parts),
        *phone_rows(name, parts, socs),
    ]


def rows_of_score(name: str, found: Score) -> list[ResultRow]:
    """Exact match, forwards and tokens a forward."""
    n, items = len(found.right), found.items
    return [
        ResultRow(
            name=f"{name}/exact_match",
            value=found.exact_match,
            unit="of questions",
            n=n,
            items=items,
            interval=found.interval,
        ),
        ResultRow(name=f"{name}/nfe", value=found.nfe, unit="forwards", n=n, items=items),
        ResultRow(name=f"{name}/tpf", value=found.tpf, unit="tokens/forward", n=n, items=items),
    ]


def score_of(parts: Sequence[Judged]) -> Score:
    """All questions of all parts."""
    return joined([score(part.generations, part.right) for part in parts])


def speed_rows(name: str, parts: Sequence[Judged]) -> Iterator[ResultRow]:
    """Answer tokens a second, of the batches that needed no compilation where there are such; none
    where no batch is whole."""
    whole = [batch for part in parts for batch in part.timed]
    if not whole:
        return
    warm = [batch for batch in whole if not batch.compiled]
    what = "tokens_per_second" if warm else "tokens_per_second_with_compilation"
    timed = warm or whole
    tokens = sum(generation.length for batch in timed for generation in batch.generations)
    seconds = sum(batch.seconds for batch in timed)
    yield ResultRow(name=f"{name}/{what}", value=tokens / seconds, unit="tokens/s")


def phone_rows(name: str, parts: Sequence[Judged], socs: Sequence[str]) -> Iterator[ResultRow]:
    """Mean latency of a question on each phone: the same forwards, of a model of LLaDA-8B's
    shape."""
    if not socs:
        return
    workloads = [workload for part in parts for workload in _workloads(part)]
    for soc in socs:
        seconds, interval = mean_latency(workloads, soc)
        yield ResultRow(
            name=f"{name}/phone/{soc}",
            value=seconds,
            unit="s",
            kind="modelled",
            n=len(workloads),
            items=sum(len(part.right) for part in parts),
            interval=interval,
            trace_source=workloads[0].source,
        )


def _workloads(found: Judged) -> list[Workload]:
    """Of each question. Raises ValueError where a batch has no trace."""
    counted = found.counted
    workloads = [
        as_if_llada_8b(trace, row)
        for batch, trace in found.store.traces()
        for row, generation in enumerate(batch.generations)
        if generation.index in counted
    ]
    require(
        len(workloads) == len(counted),
        f"{found.store.folder} has traces of {len(workloads)} questions; "
        f"allowed: of all {len(counted)}",
    )
    return workloads


def comparison_rows(baseline: Judged, found: Judged) -> list[ResultRow]:
    """The difference to a baseline on the same questions, and whether it could be chance."""
    require_same_items(baseline, found.settings["task"], 0)
    lacking = sorted(found.right.keys() - baseline.right.keys())
    require(
        not lacking,
        f"the baseline, {baseline.store.folder.parent}, lacks items {lacking[:3]} that "
        f"{found.store.folder.parent} has; allowed: a baseline with all of them",
    )
    name = f"{found.name}/against/{baseline.settings['sampler_name']}"
    counted = found.counted
    result = paired([baseline.right[index] for index in counted], list(counted.values()))
    difference, p_value = difference_rows(name, result, len(counted), len(found.right))
    return [
        difference,
        ResultRow(name=f"{name}/gained", value=result.gained, unit="questions"),
        ResultRow(name=f"{name}/lost", value=result.lost, unit="questions"),
        p_value,
    ]


def difference_rows(name: str, result: Paired, n: int, items: int) -> tuple[ResultRow, ResultRow]:
    """A difference of exact match on n questions of so many items, and whether it could be
    chance."""
    difference = ResultRow(
        name=f"{name}/difference",
        value=result.difference,
        unit="of questions",
        n=n,
        items=items,
        interval=result.interval,
    )
    chance = "McNemar, exact, two-sided"
    return difference, ResultRow(name=f"{name}/p_value", value=result.p_value, unit=chance)


def require_same_items(baseline: Judged, task: Mapping[str, Any], items: int) -> None:
    theirs = baseline.settings["task"]
    require(theirs == task, f"the baseline's task is {theirs}; allowed: the same items, {task}")
    lacking = [index for index in range(items) if index not in baseline.right]
    require(not lacking, f"the baseline lacks item {lacking[:1]} of {items}; allowed: all of them")
