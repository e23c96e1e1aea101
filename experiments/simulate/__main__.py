"""Models a decoding run on a phone: latency and its parts, energy, memory, and a timeline.

    python -m experiments.simulate trace=outputs/.../trace.npz phones=[SM8750,SM8850]
    python -m experiments.simulate system.kernels=vendor system.runtime=delayed
    python -m experiments.simulate planner=steady system.runtime=swap
    python -m experiments.simulate system.scores_on=npu
    python -m experiments.simulate shape=llada2_flash

Without a trace, runs are drawn from the paper's published statistics (GSM8K, 128 tokens): `latency`
is the mean over 24 runs, and the other rows describe the run with the most typical number of
forwards. Everything is modelled except the processor time that the simulation took here. The run
folder gets a figure of each timeline, and `timeline_<SoC>.perfetto-trace` for ui.perfetto.dev, with
counters and the times that the forwards took when the trace was recorded.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import llada_jax as lj
from experiments.harness.estimates import mean_of
from experiments.harness.pictures import new_figure, save
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, entry_point
from llada_jax.config import ModelConfig, Quant, require, require_choice, require_counts
from llada_jax.io import atomic
from llada_jax.model.architecture import architecture
from llada_jax.phones.dynamics import Techniques
from llada_jax.phones.graphs import Shape, graphs_of, unknown_so_far
from llada_jax.phones.memory import weights_mib
from llada_jax.phones.perfetto_trace import Counters, perfetto_trace
from llada_jax.phones.phone import ModelledRun
from llada_jax.phones.profile import load_profile
from llada_jax.phones.published_tasks import PublishedTasks
from llada_jax.phones.routed_layers import EXPERTS_ASSUMPTION
from llada_jax.phones.system import System
from llada_jax.phones.timeline import LANES, Timeline
from llada_jax.phones.workload import Workload, from_trace
from llada_jax.swap.address_space import MIB
from llada_jax.swap.planners import planner


@dataclass(frozen=True, kw_only=True)
class SimulateConfig:
    """Settings of the verb; conf/simulate.yaml explains each."""

    trace: str | None = None
    row: int = 0
    task: str = "GSM8K"
    tokens: int = 128
    shape: str = "llada_8b"
    quant: Quant = "int4_block32"
    phones: tuple[str, ...] = ("SM8750",)
    system: System = field(default_factory=System)
    planner: str | None = None
    drawn_from: int = 0
    drawn_forwards: int = 8
    pictures: bool = True

    def __post_init__(self) -> None:
        require_choice("quant", self.quant, Quant)
        require(bool(self.phones), "phones is empty; allowed: at least one SoC")
        if self.planner is not None:
            planner(self.planner)
        require_counts(self, "tokens", "drawn_forwards")
        require(self.drawn_from >= 0, f"drawn_from is {self.drawn_from}; allowed: 0 or more")


def simulate_run(config: SimulateConfig, run: Run) -> None:
    """Times a run on every phone, in one table."""
    model = architecture(config.shape)
    phones = [lj.Phone(load_profile(soc), config.system, config.quant) for soc in config.phones]
    workloads, began = workloads_of(config, model), time.process_time()
    found = [timed(phone, workloads[0], config) for phone in phones]
    seconds_a_phone = (time.process_time() - began) / len(phones)
    run.begin()
    rows = []
    for phone, modelled in zip(phones, found, strict=True):
        rows += on_phone(phone, workloads, modelled, config.shape)
        if config.pictures:
            picture(phone, modelled, config, run.folder / f"timeline_{modelled.soc}.png")
        for warning in _warnings_of(modelled, model):
            print(f"warning: {warning}")
    rows.append(ResultRow("simulate/processor", seconds_a_phone, "s of the processor, a phone"))
    run.finish(rows)
    if config.pictures:
        print(f"\ntimelines: {run.folder}/timeline_*; ui.perfetto.dev opens .perfetto-trace")


def picture(phone: lj.Phone, found: ModelledRun, config: SimulateConfig, path: Path) -> None:
    """Draws a timeline, and writes it for Perfetto together with measured times."""
    title = f"{config.shape} on {found.soc}, modelled ({found.source})"
    shown = slice(config.drawn_from, config.drawn_from + config.drawn_forwards)
    timeline = found.timeline(shown.start, shown.stop)
    draw_timeline(timeline, title, path)
    seconds = [] if config.trace is None else lj.Trace.load(config.trace).seconds[shown].tolist()
    measured = seconds if all(time > 0 for time in seconds) else []  # NaN if not recorded
    trace = perfetto_trace(timeline, title, counters_of(phone, found, config), measured)
    atomic.write_bytes(path.with_suffix(".perfetto-trace"), trace)


def workloads_of(config: SimulateConfig, model: ModelConfig) -> tuple[Workload, ...]:
    """Returns the trace's forwards, or drawn runs, the most typical one first."""
    if config.trace is not None:
        trace = lj.Trace.load(config.trace)
        return (from_trace(trace, model, config.row),)
    world = PublishedTasks(graphs_of("llada_8b"))
    runs = world.workloads(config.task, config.tokens, Techniques())
    typical = fmean(len(run.forwards) for run in runs)
    return tuple(sorted(runs, key=lambda run: abs(len(run.forwards) - typical)))


def counters_of(phone: lj.Phone, found: ModelledRun, config: SimulateConfig) -> Counters:
    """Returns the counters of a trace. A buffer that is mapped again replaces another one."""
    power, memory = phone.profile.power, found.footprint
    if found.plan is not None:
        return Counters(power, memory.total, found.plan.mapped_over(config.drawn_forwards))
    resident = phone.timer(config.shape, found.workload.canvas).transfers.resident_mib
    if phone.system.runtime != "swap" or resident is None:
        return Counters(power, memory.total)
    return Counters(power, memory.cache + memory.temporaries + resident)


def timed(phone: lj.Phone, workload: Workload, config: SimulateConfig) -> ModelledRun:
    """Times a run on one phone. Raises ValueError, with the phone's name, if it cannot run."""
    try:
        return phone.time(workload, config.shape, planner=config.planner)
    except ValueError as error:
        raise ValueError(f"{phone.profile.soc}: {error}") from error


def on_phone(
    phone: lj.Phone, workloads: Sequence[Workload], found: ModelledRun, shape: Shape
) -> Iterator[ResultRow]:
    """Yields the mean latency of all runs, and the breakdown, energy and memory of the first run,
    `found`. If there are several runs, the first one's latency has its own row."""
    workload, system, memory = workloads[0], phone.system, found.footprint

    def row(name: str, value: float, unit: str, **fields) -> ResultRow:
        fields |= {"kind": "modelled", "trace_source": found.source}
        return ResultRow(f"{found.soc}/{name}", value, unit, **fields)

    timer = phone.timer(shape, workload.canvas, found.plan)
    headline = mean_of([phone.simulated(run, timer).seconds for run in workloads])
    band = [bound * headline.value / found.seconds for bound in found.interval]
    yield row("latency", headline.value, "s", interval=tuple(band), n=headline.n)
    if headline.interval is not None:
        yield row("latency/of_runs", headline.value, "s", interval=headline.interval, n=headline.n)
        yield row("latency/of_the_run_below", found.seconds, "s", interval=found.interval)
    yield row("tokens_per_second", found.tokens_per_second, "tokens/s")
    for name, seconds in found.breakdown.items():
        yield row(f"part/{name}", seconds, "s")
    for name, seconds in found.doubts:
        yield row(f"doubt/{name}", seconds, "s")
    if found.plan is not None:
        yield row("plan/resident", found.plan.resident_bytes / MIB, "MiB")
        yield row("plan/transfers", found.plan.transfers, "a forward")
        yield row("plan/stall", found.plan.stall_seconds, "s a forward, by the plan")
    yield row("energy", found.energy.joules, "J", interval=found.joules)
    yield row("energy_above_idle", found.energy.above_idle, "J")
    yield row("power", found.energy.watts, "W")
    if found.experts_per_layer is not None:
        yield row("experts_per_layer", found.experts_per_layer, "different a forward")
        weights = weights_mib(graphs_of(shape).model, head=system.head_on_npu)
        yield row("weights", weights, "MiB, of all experts")
        yield row("staging", timer.transfers.seconds, "s a forward, if nothing hid it")
    yield row("must_be_mapped", memory.total, "MiB")
    yield row("address_space", memory.limit, "MiB")


def _warnings_of(found: ModelledRun, model: ModelConfig) -> Iterator[str]:
    """Yields warnings about assumptions behind the numbers."""
    if not found.footprint.fits:
        yield f"{found.soc} cannot run this: {found.footprint.reason}"
    experts, moe = found.experts_per_layer, model.moe
    if experts is not None and moe is not None:
        yield f"{experts:.0f} of {moe.n_experts} experts a layer and forward: {EXPERTS_ASSUMPTION}"
        gib = weights_mib(model, head=False) / 1024
        yield (
            f"{gib:,.1f} GiB of weights are assumed to fit the phone's memory, whose size no "
            "profile has; a forward stages all experts, since none is known in time"
        )
    yield from unknown_so_far()


def draw_timeline(timeline: Timeline, title: str, path: Path) -> None:
    """Draws the lanes over time, as Perfetto shows them."""
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Patch

    figure = new_figure(10, 2.4)
    axes: Any = figure.subplots()
    handles = []
    for index, lane in enumerate(LANES):
        events = [event for event in timeline.events if event.task.lane == lane]
        spans = [(event.start, event.end - event.start) for event in events]
        shades = [to_rgba(f"C{index}", 0.5 + 0.4 * (i % 2)) for i in range(len(events))]
        axes.broken_barh(spans, (index - 0.35, 0.7), facecolors=shades)
        handles += [Patch(color=f"C{index}", alpha=alpha) for alpha in (0.5, 0.9)]
    axes.set_yticks(range(len(LANES)), ["NPU", "staging", "CPU"])
    note = [*[""] * 5, "shades: one task, the next"]
    figure.legend(handles, note, ncols=6, columnspacing=-0.5, loc="outside lower right", fontsize=7,
                 frameon=False)  # fmt: skip
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title(title, fontsize=9)
    save(figure, path)


main = entry_point("simulate", simulate_run, SimulateConfig)
