"""What a decoding run would take on a phone: latency, why, energy, memory, and a timeline.

    python -m experiments.simulate trace=outputs/.../trace.npz shape=tiny
    python -m experiments.simulate trace=outputs/.../trace.npz as_if=true phones=[SM8750,SM8850]
    python -m experiments.simulate system.kernels=vendor system.runtime=delayed
    python -m experiments.simulate planner=steady system.runtime=swap
    python -m experiments.simulate system.scores_on=sampling_engine sampling_engine.vlen=512

Without a trace, the paper's published statistics stand for one (GSM8K, 128 tokens): all rows are of
the first run that is drawn from them, but for `mean_latency`, which is over the 24 runs that the
calibration takes. All numbers are modelled. The run folder gets `timeline_<SoC>.json`, which
ui.perfetto.dev opens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import hydra
from omegaconf import DictConfig

import llada_jax as lj
from experiments.harness.means import mean_of
from experiments.harness.phone_pictures import draw_timeline
from experiments.harness.results import ResultRow
from experiments.harness.run import Run, launch
from experiments.simulate.staging import PlannedRun, plan_run
from llada_jax.config import Quant, require, require_choice
from llada_jax.model.architecture import architecture
from llada_jax.phone.chrome_trace import write_chrome_trace
from llada_jax.phone.dynamics import Decoding
from llada_jax.phone.graphs import Graphs, graphs_of
from llada_jax.phone.memory import Staging, footprint
from llada_jax.phone.planned import PlannedStaging
from llada_jax.phone.profile import Profile, load_profile
from llada_jax.phone.published_tasks import PublishedTasks
from llada_jax.phone.simulate import ForwardTimer, ScoresOn, Simulated, System, simulate
from llada_jax.phone.uncertainty import with_uncertainty
from llada_jax.phone.workload import Workload, from_trace
from llada_jax.sampling_engine.attached import AttachedConfig, AttachedEngine
from llada_jax.swap.budget import MIB
from llada_jax.swap.planners import planner
from llada_jax.swap.timing import stall_of


@dataclass(frozen=True, kw_only=True)
class SimulateConfig:
    """What ran, and on which phone it should run. The comments are in conf/simulate.yaml."""

    trace: str | None = None
    row: int = 0
    as_if: bool = False
    task: str = "GSM8K"
    tokens: int = 128
    shape: str = "llada_8b"
    quant: Quant = "int4_block32"
    phones: tuple[str, ...] = ("SM8750",)
    system: System = field(default_factory=System)
    planner: str | None = None
    sampling_engine: AttachedConfig = field(default_factory=AttachedConfig)
    drawn_from: int = 0
    drawn_forwards: int = 8
    pictures: bool = True

    def __post_init__(self) -> None:
        require_choice("quant", self.quant, Quant)
        require(bool(self.phones), "phones is empty; allowed: at least one SoC")
        if self.planner is not None:
            planner(self.planner)
            require(
                self.system.scores_on == "cpu",
                f"planner is {self.planner!r} and scores_on {self.system.scores_on!r}; allowed: "
                "'cpu', since a plan is of the body's weights",
            )
        require(self.tokens > 0, f"tokens is {self.tokens}; allowed: 1 or more")
        for name, least in (("drawn_from", 0), ("drawn_forwards", 1)):
            value = getattr(self, name)
            require(value >= least, f"{name} is {value}; allowed: {least} or more")


def simulate_run(config: SimulateConfig, run: Run) -> None:
    """Every phone, in one table."""
    graphs = Graphs(architecture(config.shape), config.quant)
    profiles = [load_profile(soc) for soc in config.phones]
    for profile in profiles:
        profile.kernels(config.system.kernels)
    workloads = workloads_of(config, graphs)
    workload = workloads[0]
    plans = [plan_of(config, workload, graphs, profile) for profile in profiles]
    engine = AttachedEngine(config.sampling_engine, graphs.model.vocab_size)
    if config.system.scores_on == "sampling_engine":
        engine.program(max(forward.head_rows for forward in workload.forwards))
    stagings = [
        staging_on(profile, config, workload, graphs, planned, engine)
        for profile, planned in zip(profiles, plans, strict=True)
    ]
    run.begin()
    rows = []
    for profile, planned, staging in zip(profiles, plans, stagings, strict=True):
        found = simulate(workload, graphs, profile, config.system, staging, engine)
        rows += on_phone(workloads, found, graphs, profile, config.system, engine, planned)
        path = run.folder / f"timeline_{profile.soc}.json"
        title = f"{config.shape} on {profile.soc}, modelled ({workload.source})"
        shown = found.timeline(config.drawn_from, config.drawn_from + config.drawn_forwards)
        write_chrome_trace(shown, title, path)
        if config.pictures:
            draw_timeline(shown, title, path.with_suffix(".png"))
        for unknown in found.unknown:
            print(f"warning: {unknown}")
    run.finish(rows)


def workloads_of(config: SimulateConfig, graphs: Graphs) -> tuple[Workload, ...]:
    """The forwards of the trace, or of runs by the paper's statistics."""
    if config.trace is not None:
        trace = lj.Trace.load(config.trace)
        return (from_trace(trace, graphs.model, config.row, as_if=config.as_if),)
    return PublishedTasks(graphs_of("llada_8b")).workloads(config.task, config.tokens, Decoding())


def plan_of(
    config: SimulateConfig, workload: Workload, graphs: Graphs, profile: Profile
) -> PlannedRun | None:
    """The plan of the planner, where one is named."""
    if config.planner is None:
        return None
    return plan_run(config.planner, workload, graphs, profile, config.system)


def staging_on(
    profile: Profile,
    config: SimulateConfig,
    workload: Workload,
    graphs: Graphs,
    planned: PlannedRun | None,
    engine: AttachedEngine,
) -> Staging | PlannedStaging:
    """What each forward stages. Raises ValueError that names the phone where nothing could run."""
    if planned is not None:
        return planned.staging(profile)
    try:
        return ForwardTimer(
            graphs, profile, config.system, workload.canvas, engine=engine
        ).staging()
    except ValueError as error:
        raise ValueError(f"{profile.soc}: {error}") from error


def on_phone(
    workloads: Sequence[Workload],
    found: Simulated,
    graphs: Graphs,
    profile: Profile,
    system: System,
    engine: AttachedEngine,
    planned: PlannedRun | None = None,
) -> Iterator[ResultRow]:
    """Latency with its uncertainty, breakdown, energy and memory of the first run, which was
    `found`; of all runs, where there are several, the mean latency."""
    workload = workloads[0]

    def row(name: str, value: float, unit: str, **more) -> ResultRow:
        return ResultRow(
            name=f"{profile.soc}/{name}", value=value, unit=unit, kind="modelled",
            trace_source=workload.source, **more,
        )  # fmt: skip

    def phone(moved: Profile, system: System) -> ForwardTimer:
        staging = None if planned is None else planned.staging(moved)
        return ForwardTimer(graphs, moved, system, workload.canvas, staging, engine)

    def latency(moved: Profile, system: System) -> float:
        return phone(moved, system).latency(workload)

    def means(prefix: str, system: System) -> Iterator[ResultRow]:
        if len(workloads) > 1:
            mean = mean_of([*map(phone(profile, system).latency, workloads)])
            name = f"{prefix}mean_latency"
            yield row(name, mean.value, "s, of all runs", interval=mean.interval, n=mean.n)

    sure = with_uncertainty(profile, lambda moved: latency(moved, system))
    spread = 1.96 * sure.deviation
    bounds = max(0.0, sure.seconds - spread), sure.seconds + spread
    yield row("latency", found.seconds, "s", interval=bounds)
    yield from means("", system)
    yield row("tokens_per_second", workload.tokens / found.seconds, "tokens/s")
    for name, seconds in sorted(found.parts.items(), key=lambda item: -item[1]):
        yield row(f"part/{name}", seconds, "s")
    for name, seconds in sure.largest:
        yield row(f"doubt/{name}", seconds, "s")
    if planned is not None:
        graph, plan = planned.graph, planned.plan
        yield row("plan/resident", plan.resident_bytes(graph) / MIB, "MiB")
        yield row("plan/transfers", len(plan.transfers), "a forward")
        yield row("plan/stall", float(stall_of(graph, plan)) / 1e9, "s a forward, by the plan")
    if system.scores_on != "cpu":
        for where in get_args(ScoresOn):
            seconds = latency(profile, replace(system, scores_on=where))
            yield row(f"scores_on/{where}/latency", seconds, "s")
            yield from means(f"scores_on/{where}/", replace(system, scores_on=where))
    yield row("energy", found.energy.joules, "J")
    yield row("energy_above_idle", found.energy.above_idle, "J")
    yield row("power", found.energy.watts, "W")
    most = max(forward.rows for forward in workload.forwards)
    memory = footprint(
        system.runtime,
        graphs.model,
        profile.memory,
        canvas=workload.canvas,
        rows=most,
        head=system.scores_on != "cpu",
    )
    yield row("must_be_mapped", memory.total, "MiB")
    yield row("address_space", memory.limit, "MiB")
    if not memory.fits:
        print(f"warning: {profile.soc} cannot run this: {memory.reason}")


@hydra.main(version_base="1.3", config_path="../../conf", config_name="simulate")
def main(config: DictConfig) -> None:
    launch(simulate_run, SimulateConfig, config)


if __name__ == "__main__":
    main()
