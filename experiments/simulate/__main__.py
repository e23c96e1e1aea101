"""What a decoding run would take on a phone: latency, why, energy, memory, and a timeline.

    python -m experiments.simulate trace=outputs/.../trace.npz phones=[SM8750,SM8850]
    python -m experiments.simulate system.kernels=vendor system.runtime=delayed
    python -m experiments.simulate planner=steady system.runtime=swap
    python -m experiments.simulate system.scores_on=npu
    python -m experiments.simulate shape=llada2_flash

Without a trace, the paper's published statistics stand for one (GSM8K, 128 tokens): `latency` is
the mean over 24 runs that are drawn from them, the other rows are of the run that has a usual
number of forwards. All is modelled, but for the processor's seconds that timing took here. The run
folder gets a picture of each timeline, and `timeline_<SoC>.perfetto-trace`, which ui.perfetto.dev
opens: with counters, and below it what the forwards took where the trace was recorded.
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
    """What ran, and on which phone it should run. The comments are in conf/simulate.yaml."""

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
        for warning in warnings_of(modelled, model):
            print(f"warning: {warning}")
    rows.append(ResultRow("simulate/processor", seconds_a_phone, "s of the processor, a phone"))
    run.finish(rows)
    if config.pictures:
        print(f"\ntimelines: {run.folder}/timeline_*; ui.perfetto.dev opens .perfetto-trace")


def picture(phone: lj.Phone, found: ModelledRun, config: SimulateConfig, path: Path) -> None:
    """Draws a timeline, and writes it for Perfetto beside what was measured."""
    title = f"{config.shape} on {found.soc}, modelled ({found.source})"
    shown = slice(config.drawn_from, config.drawn_from + config.drawn_forwards)
    timeline = found.timeline(shown.start, shown.stop)
    draw_timeline(timeline, title, path)
    seconds = [] if config.trace is None else lj.Trace.load(config.trace).seconds[shown].tolist()
    measured = seconds if all(each > 0 for each in seconds) else []  # where the trace says
    trace = perfetto_trace(timeline, title, counters_of(phone, found, config), measured)
    atomic.write_bytes(path.with_suffix(".perfetto-trace"), trace)


def workloads_of(config: SimulateConfig, model: ModelConfig) -> tuple[Workload, ...]:
    """Returns forwards of the trace, or of runs by the paper's statistics, a usual one first."""
    if config.trace is not None:
        trace = lj.Trace.load(config.trace)
        return (from_trace(trace, model, config.row),)
    world = PublishedTasks(graphs_of("llada_8b"))
    runs = world.workloads(config.task, config.tokens, Techniques())
    usual = fmean(len(run.forwards) for run in runs)
    return tuple(sorted(runs, key=lambda run: abs(len(run.forwards) - usual)))


def counters_of(phone: lj.Phone, found: ModelledRun, config: SimulateConfig) -> Counters:
    """Returns what a trace counts. A buffer that is mapped again takes the place of another."""
    power, memory = phone.profile.power, found.footprint
    if found.plan is not None:
        return Counters(power, memory.total, found.plan.mapped_over(config.drawn_forwards))
    resident = phone.timer(config.shape, found.workload.canvas).transfers.resident_mib
    if phone.system.runtime != "swap" or resident is None:
        return Counters(power, memory.total)
    return Counters(power, memory.cache + memory.temporaries + resident)


def timed(phone: lj.Phone, workload: Workload, config: SimulateConfig) -> ModelledRun:
    """Times a run on one phone. Raises ValueError that names the phone where nothing could run."""
    try:
        return phone.time(workload, config.shape, planner=config.planner)
    except ValueError as error:
        raise ValueError(f"{phone.profile.soc}: {error}") from error


def on_phone(
    phone: lj.Phone, workloads: Sequence[Workload], found: ModelledRun, shape: Shape
) -> Iterator[ResultRow]:
    """Yields the mean latency of all runs with its band; of the first run, which was `found`, its
    breakdown, energy and memory, and its own latency where there are several."""
    workload, system, memory = workloads[0], phone.system, found.footprint

    def row(name: str, value: float, unit: str, **more) -> ResultRow:
        more |= {"kind": "modelled", "trace_source": found.source}
        return ResultRow(f"{found.soc}/{name}", value, unit, **more)

    timer = phone.timer(shape, workload.canvas, found.plan)
    headline = mean_of([phone.simulated(each, timer).seconds for each in workloads])
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


def warnings_of(found: ModelledRun, model: ModelConfig) -> Iterator[str]:
    """Yields what a reader of the numbers must know."""
    if not found.footprint.fits:
        yield f"{found.soc} cannot run this: {found.footprint.reason}"
    experts, moe = found.experts_per_layer, model.moe
    if experts is not None and moe is not None:
        yield f"{experts:.0f} of {moe.n_experts} experts a layer and forward: {EXPERTS_ASSUMPTION}"
        gib = weights_mib(model, head=False) / 1024
        yield (
            f"{gib:,.1f} GiB of weights are taken to lie in the phone's memory, whose size no "
            "profile has; what a forward stages is of all experts, as none is known in time"
        )
    yield from unknown_so_far()


def draw_timeline(timeline: Timeline, title: str, path: Path) -> None:
    """Draws lanes over time, as Perfetto would show them, as a PNG."""
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Patch

    drawn = new_figure(10, 2.4)
    axes: Any = drawn.subplots()
    handles = []
    for place, lane in enumerate(LANES):
        mine = [event for event in timeline.events if event.task.lane == lane]
        spans = [(event.start, event.end - event.start) for event in mine]
        shades = [to_rgba(f"C{place}", 0.5 + 0.4 * (i % 2)) for i in range(len(mine))]
        axes.broken_barh(spans, (place - 0.35, 0.7), facecolors=shades)
        handles += [Patch(color=f"C{place}", alpha=alpha) for alpha in (0.5, 0.9)]
    axes.set_yticks(range(len(LANES)), ["NPU", "staging", "CPU"])
    note = [*[""] * 5, "shades: one task, the next"]
    drawn.legend(handles, note, ncols=6, columnspacing=-0.5, loc="outside lower right", fontsize=7,
                 frameon=False)  # fmt: skip
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title(title, fontsize=9)
    save(drawn, path)


main = entry_point("simulate", simulate_run, SimulateConfig)
