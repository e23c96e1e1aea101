"""Figures 11 and 12: the latency of every cell on three phones, and of another model.

The state of a phone, such as its temperature, slows everything in one session by a common factor.
So each cell has two tests: the time of a baseline, and the speed-up of the column measured in the
same session. The time of that column follows from the two and is not a third test.
"""

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from statistics import fmean
from typing import NamedTuple

from experiments.harness.estimates import mean_of, ratio
from experiments.harness.results import ResultRow
from experiments.reproduce.chapter import (
    LENGTHS,
    PAPER,
    SOCS,
    TASKS,
    TYPICAL,
    Chapter,
    band,
    chapter,
    is_close,
    modelled,
    timer_of,
)
from llada_jax.phones.dynamics import Techniques
from llada_jax.phones.profile import Session, load_profile
from llada_jax.phones.published_tasks import PublishedTasks
from llada_jax.phones.system import System
from llada_jax.phones.workload import Workload, autoregressive, blockwise, vanilla

FIGURE = f"{PAPER}, Figure 11"
SYSTEMS = {
    "cpu": System(body="cpu"),
    "cpu_cache": System(body="cpu"),
    "npu": System(runtime="remap"),
    "llada_cpp": System(runtime="swap"),
}
PAIRS = {"cpu_cache": "cpu", "llada_cpp": "npu"}
"""The baseline in the same session, by column."""
STEADY = "SM8750"
"""The phone whose sessions differ no more than runs within a session."""
LLAMA = {"cpu": System(body="cpu"), "npu": System(runtime="wide")}
"""Llama's baseline keeps all weights mapped, as two sessions of llama.cpp's backend can."""


class _Cell(NamedTuple):
    """One column of a task and a length on a phone."""

    seconds: list[float]
    """Times of the runs in the cell's session."""
    session: Session
    changes: Mapping[str, float]
    """Change of the logarithm of the time by the uncertainty of each number."""
    workload: float
    """Deviation of the logarithm from unknown prompts and decoding."""
    reference: float
    fitted: bool
    source: str

    def during(self, slowdown: float) -> "_Cell":
        """Returns the cell in a session with a known slowdown."""
        seconds = [slowdown / self.session.slowdown * time for time in self.seconds]
        return self._replace(seconds=seconds, session=Session(slowdown, 0.0))


def fig11(world: PublishedTasks) -> Chapter:
    """Predicts every cell on every phone, and the ratios within a session."""
    rows = [
        row
        for soc, name in product(SOCS, TASKS)
        for row in (*_cells_of(world, soc, name), *_llama(world, soc, name))
    ]
    typical = in_typical_session(rows)
    own = [row for row in rows if row.name in typical]
    found, means = (sum(map(is_close, times)) for times in (own, typical.values()))
    sessions = "; ".join(map(_session, SOCS))
    return chapter("fig11", rows, sessions=sessions, own=found, mean=means, cells=len(own))


def in_typical_session(rows: Iterable[ResultRow]) -> dict[str, ResultRow]:
    """Returns times in a typical session, by the name of the row in a known session."""
    return {name: row for row in rows if (name := row.name.removesuffix(TYPICAL)) != row.name}


def fig12(world: PublishedTasks) -> Chapter:
    """Predicts Dream-7B on SM8750, with the prompts and decoding statistics of a LLaDA task.

    The figure does not name its task. How much a cache saves on the CPU depends on the prompts
    alone, so the task is the one with the most similar published savings, whose rows do not count.
    """
    figure = world.published["fig12_s"]
    task, rows = task_of_fig12(world), []
    for tokens, values in figure["values"].items():
        known = dict(zip(figure["columns"], values, strict=True))
        cells = _columns(world, "dream_7b", "SM8750", task, int(tokens), known)
        for row in _rows(f"fig12/{tokens}", cells, f"{PAPER}, Figure 12"):
            is_chosen_by = row.name.endswith("/cpu_over_cpu_cache")
            rows.append(replace(row, kind="informed", fitted=None) if is_chosen_by else row)
    return chapter("fig12", rows, task=task)


def task_of_fig12(world: PublishedTasks) -> str:
    """Returns the task of LLaDA-8B that a cache on the CPU speeds up most like Dream-7B's."""
    dream, llada = world.published["fig12_s"], world.published["fig11_s"]["values"]["SM8750"]
    fitted = world.figures["fig11_s"]["SM8750"]

    def distance(task: str) -> float:
        total = 0.0
        for tokens, values in dream["values"].items():
            cell = llada[task][tokens] | fitted[task][tokens]
            cpu, cached = values[:2]
            total += math.log(cell["cpu"] / cell["cpu_cache"] / (cpu / cached)) ** 2
        return total

    return min(TASKS, key=distance)


def _cells_of(world: PublishedTasks, soc: str, name: str) -> Iterator[ResultRow]:
    published = world.published["fig11_s"]["values"][soc][name]
    fitted = world.figures["fig11_s"][soc].get(name, {})
    cells = {}
    for tokens in LENGTHS:
        of_fit = fitted.get(str(tokens), {})
        known = published[str(tokens)] | of_fit
        cells[tokens] = _columns(world, "llada_8b", soc, name, tokens, known, of_fit)
    # A phone whose sessions differ is compared in the session of each cell, which the base's fitted
    # cell shows.
    shown = {
        base: cells[LENGTHS[-1]][base]
        for base in PAIRS.values()
        if load_profile(soc).session.typical(SYSTEMS[base].body).slowdown != 1.0
    }
    for base, cell in shown.items():
        slowdown = cell.session.slowdown * cell.reference / fmean(cell.seconds)
        yield modelled(f"fig11/{soc}/{name}/session/{base}", slowdown, "times", kind="fitted")
        shown[base] = cell.during(slowdown)
    for tokens, columns in cells.items():
        prefix = f"fig11/{soc}/{name}/{tokens}"
        own = {
            column: cell.during(shown[base].session.slowdown) if base in shown else cell
            for column, cell in columns.items()
            for base in [PAIRS.get(column, column)]
        }
        yield from _rows(prefix, own, FIGURE, shown)
        for base in shown:
            if not columns[base].fitted:
                cells_of_base = {base: columns[base]}
                for row in _rows(prefix, cells_of_base, FIGURE):
                    yield replace(row, name=row.name + TYPICAL, kind="repeated", fitted=None)


def _columns(
    world: PublishedTasks, shape: str, soc: str, task: str, tokens: int,
    known: Mapping[str, float], fitted: Container[str] = (),
) -> dict[str, _Cell]:  # fmt: skip
    workloads = _workloads(world, task, tokens)
    canvas = world.prompt_spread / workloads["cpu"][0].canvas
    open_to = {"cpu": canvas, "cpu_cache": 0.0, "npu": canvas, "llada_cpp": world.spread}
    found = {}
    for column, runs in workloads.items():
        timer = timer_of(shape, soc, SYSTEMS[column])
        seconds = [*map(timer.seconds, runs)]
        changes = _changes(world, shape, soc, column, tokens)
        found[column] = _Cell(
            seconds, timer.session, changes, open_to[column], known[column], column in fitted,
            runs[0].source,
        )  # fmt: skip
    return found


def _workloads(world: PublishedTasks, task: str, tokens: int) -> dict[str, tuple[Workload, ...]]:
    prompt = world.task(task).prompt
    whole, cached = (vanilla(prompt, tokens),), (blockwise(prompt, tokens),)
    decoded = world.workloads(task, tokens, Techniques())
    return {"cpu": whole, "cpu_cache": cached, "npu": whole, "llada_cpp": decoded}


@cache
def _changes(
    world: PublishedTasks, shape: str, soc: str, column: str, tokens: int
) -> dict[str, float]:
    """Returns the effect of each uncertainty in a column, from one task, since tasks differ
    little."""
    run = _workloads(world, TASKS[0], tokens)[column][0]
    return timer_of(shape, soc, SYSTEMS[column]).changes(run.with_mean_head_rows())


def _rows(
    prefix: str, cells: Mapping[str, _Cell], source: str, shown: Mapping[str, _Cell] = {}
) -> Iterator[ResultRow]:
    """Yields the time of each column, then the speed-ups within sessions.

    `shown` has the cells that show the state of a session, by the baseline: a time in that session
    is only as uncertain as its ratio to this cell.
    """
    for column, cell in cells.items():
        mean, base = mean_of(cell.seconds), PAIRS.get(column, column)
        doubts = [*cell.changes.values(), cell.session.spread, cell.workload]
        if base in shown:
            doubts = _apart(shown[base], cell, column)
        yield modelled(
            f"{prefix}/{column}", mean, "s", reference=cell.reference, fitted=cell.fitted,
            kind="repeated" if column in PAIRS and not cell.fitted else "modelled",
            band=band(mean.value, *doubts),
            source=source, trace_source=cell.source,
        )  # fmt: skip
    for column, base in PAIRS.items():
        if column not in cells:
            continue
        slow, fast = cells[base], cells[column]
        found = ratio(slow.seconds * len(fast.seconds), fast.seconds)
        both = slow.fitted and fast.fitted
        yield modelled(
            f"{prefix}/{base}_over_{column}", found, "times",
            reference=slow.reference / fast.reference, fitted=both, source=source,
            kind="repeated" if fast.fitted and not both else "modelled",
            band=band(found.value, *_apart(slow, fast, column)), trace_source=fast.source,
        )  # fmt: skip


def _apart(one: _Cell, other: _Cell, column: str) -> list[float]:
    """Returns the uncertainties of the ratio of two times in one session."""
    drift = math.sqrt(2) * load_profile(STEADY).session.typical(SYSTEMS[column].body).spread
    numbers = {*one.changes, *other.changes}
    apart = [one.changes.get(n, 0.0) - other.changes.get(n, 0.0) for n in numbers]
    return [*apart, one.workload, other.workload, drift]


def _llama(world: PublishedTasks, soc: str, name: str) -> Iterator[ResultRow]:
    """Yields the autoregressive reference: 128 tokens of Llama-3-8B."""
    published = world.published["fig11_s"]["values"][soc][name]["llama_128"]
    workload = autoregressive(world.task(name).prompt, 128)
    for column, system in LLAMA.items():
        seconds, relative, _ = timer_of("llama3_8b", soc, system).uncertain(workload)
        yield modelled(
            f"fig11/{soc}/{name}/128/llama_{column}", seconds, "s", reference=published[column],
            kind="informed" if column == "npu" else "modelled", fitted=False, source=FIGURE,
            band=band(seconds, relative), trace_source=workload.source,
        )  # fmt: skip


def _session(soc: str) -> str:
    session = load_profile(soc).session
    return (
        f"{soc}'s are {session.npu_slowdown:.2f} times (spread {session.npu_spread:.2f}) on the "
        f"NPU and {session.cpu_slowdown:.2f} times ({session.cpu_spread:.2f}) on the CPU"
    )
