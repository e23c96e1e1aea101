"""Figure 11: latency of every cell, on three phones."""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from experiments.harness.estimates import mean_of
from experiments.harness.results import ResultRow
from experiments.reproduce.chapter import (
    LENGTHS,
    ONE_A_STEP,
    PAPER,
    SOCS,
    TASKS,
    Chapter,
    chapter,
    modelled,
)
from llada_jax.phone.dynamics import SOURCE, Decoding
from llada_jax.phone.forward_timer import ForwardTimer
from llada_jax.phone.graphs import graphs_of
from llada_jax.phone.profile import load_profile
from llada_jax.phone.published_tasks import PublishedTasks
from llada_jax.phone.system import System
from llada_jax.phone.workload import autoregressive, blockwise, vanilla

FIGURE = f"{PAPER}, Figure 11"


def fig11(world: PublishedTasks) -> Chapter:
    """Predicts every cell on every phone; only SM8750 is fitted to, in two columns."""
    rows = [row for soc in SOCS for row in _cells(world, soc)]
    by_column = {
        "llada.cpp, 32 and 64 tokens": (("llada_cpp",), (32, 64), 0.20),
        "CPU with cache and NPU": (("cpu_cache", "npu"), LENGTHS, 0.15),
    }
    words = []
    for title, (columns, lengths, bound) in by_column.items():
        names = {f"fig11/SM8750/{t}/{n}/{c}" for t in TASKS for n in lengths for c in columns}
        errors = [abs(row.error or 0) for row in rows if row.name in names]
        words.append(
            f"SM8750, {title}: {sum(error <= bound for error in errors)} of {len(errors)} within "
            f"{bound:.0%}."
        )
    gains = _gains(rows)
    return chapter(
        "fig11",
        [*rows, *_speedups(gains)],
        words,
        ours=max(gains, key=lambda each: each.modelled),
        theirs=max(gains, key=lambda each: each.published),
        cells=len(gains),
        low=sum((gain.cached.error or 0.0) < 0 for gain in gains),
    )


def _cells(world: PublishedTasks, soc: str) -> Iterator[ResultRow]:
    published = world.published["fig11_s"]["values"][soc]
    fitted = world.figures["fig11_cells_SM8750_128"]
    on_cpu, swap, remap = System(body="cpu"), System(runtime="swap"), System(runtime="remap")
    for name in TASKS:
        prompt = world.task(name).prompt
        for tokens in LENGTHS:
            whole, cached = (vanilla(prompt, tokens),), (blockwise(prompt, tokens),)
            decoded = world.workloads(name, tokens, Decoding())
            columns = {
                "cpu": (whole, on_cpu, ONE_A_STEP),
                "cpu_cache": (cached, on_cpu, ONE_A_STEP),
                "npu": (whole, remap, ONE_A_STEP),
                "llada_cpp": (decoded, swap, SOURCE),
            }
            for column, (workloads, system, source) in columns.items():
                known = published[name][str(tokens)]
                is_fitted = column not in known
                seconds = mean_of(world.seconds(soc, system, workloads))
                reference = fitted[name][column] if is_fitted else known[column]
                more: Any = {"reference": reference, "fitted": is_fitted, "trace_source": source}
                row = f"fig11/{soc}/{name}/{tokens}/{column}"
                yield modelled(row, seconds, "s", source=FIGURE, **more)
        yield from _llama(world, soc, name, published[name]["llama_128"])


def _llama(
    world: PublishedTasks, soc: str, name: str, published: dict[str, float]
) -> Iterator[ResultRow]:
    """Yields the autoregressive reference: 128 tokens of Llama-3-8B."""
    workload = autoregressive(world.task(name).prompt, 128)
    for column, system in (("cpu", System(body="cpu")), ("npu", System(runtime="remap"))):
        seconds = _llama_phone(soc, system).latency(workload)
        more: Any = {"reference": published[column], "trace_source": workload.source}
        row = f"fig11/{soc}/{name}/128/llama_{column}"
        yield modelled(row, seconds, "s", source=FIGURE, fitted=False, **more)


@cache
def _llama_phone(soc: str, system: System) -> ForwardTimer:
    return ForwardTimer(graphs_of("llama3_8b"), load_profile(soc), system, canvas=256)


class _Gain(NamedTuple):
    """llada.cpp over the CPU with a cache, in one cell."""

    task: str
    tokens: int
    cached: ResultRow
    whole: ResultRow

    @property
    def modelled(self) -> float:
        return self.cached.value / self.whole.value

    @property
    def published(self) -> float:
        return (self.cached.reference or 0.0) / (self.whole.reference or 1.0)


def _gains(rows: list[ResultRow]) -> list[_Gain]:
    named = {row.name.removeprefix("fig11/SM8750/"): row for row in rows}
    return [
        _Gain(task, n, named[f"{task}/{n}/cpu_cache"], named[f"{task}/{n}/llada_cpp"])
        for task, n in product(TASKS, LENGTHS)
    ]


def _speedups(gains: list[_Gain]) -> Iterator[ResultRow]:
    """Yields the abstract's range, on SM8750."""
    for name, choose, reference in (("min", min, 17.0), ("max", max, 42.0)):
        gain = choose(gains, key=lambda each: each.modelled)
        yield modelled(
            f"fig11/SM8750/speedup_{name}", gain.modelled, "times", reference=reference,
            fitted=bool(gain.whole.fitted), source=f"{PAPER}, abstract", trace_source=SOURCE,
        )  # fmt: skip
