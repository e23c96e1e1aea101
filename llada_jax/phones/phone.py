"""The public interface of the phone model: time, energy and memory of a decoding run on a phone.

A `Phone` is a profile (hardware numbers with sources) and a system (its software). No phone is
needed: all results are modelled, and have an interval from the doubts of the profile's numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from llada_jax.config import LatencyTable, Quant, ascending_counts, require, require_choice
from llada_jax.phones.graphs import Shape, graphs_of, shape_name
from llada_jax.phones.memory import Footprint, footprint, max_rows
from llada_jax.phones.profile import Profile, Session, load_profile
from llada_jax.phones.simulate import ForwardTimer, SimulatedRun, simulate
from llada_jax.phones.swap_plan import SwapPlan, plan_swaps
from llada_jax.phones.system import System
from llada_jax.phones.uncertainty import POWER_SPREAD, TWO_SIDED, RunTimer
from llada_jax.phones.workload import Forward, Workload, from_trace, round_cache

if TYPE_CHECKING:
    from llada_jax.phones.calibration.calibrate import Calibration
    from llada_jax.phones.calibration.measurements import Measurement

ROWS = (32, 64, 128, 256)
CANVAS = 256


@dataclass(frozen=True, repr=False, kw_only=True)
class ModelledRun(SimulatedRun):
    """Modelled time, energy and memory of a decoding run on a phone."""

    soc: str
    shape: str
    """Name of the model's shape."""
    interval: tuple[float, float]
    """95 % interval of the seconds, from the doubts of the profile and the spread of sessions."""
    joules: tuple[float, float]
    """95 % interval of the energy. It is wide, since power is known only to a factor."""
    doubts: tuple[tuple[str, float], ...]
    """The five most uncertain numbers of the profile, with the seconds that their doubt causes."""
    footprint: Footprint
    """MiB that must be mapped at once, and the limit."""
    plan: SwapPlan | None
    """The plan of the requested planner, or None. Each forward includes its stall."""

    @property
    def breakdown(self) -> dict[str, float]:
        """Seconds by cause, the largest first. They add up to `seconds`."""
        return dict(sorted(self.parts.items(), key=lambda part: -part[1]))

    @property
    def tokens_per_second(self) -> float:
        return self.workload.tokens / self.seconds

    def __repr__(self) -> str:
        """Describes the run in one line."""
        low, high = self.interval
        parts = ", ".join(f"{name} {s:.2f} s" for name, s in list(self.breakdown.items())[:3])
        memory = self.footprint
        return (
            f"ModelledRun({self.seconds:.2f} s ({low:.2f} to {high:.2f}), modelled: "
            f"{self.workload.tokens} tokens of {self.shape} on {self.soc}; {parts}; "
            f"{self.joules[0]:.0f} to {self.joules[1]:.0f} J; "
            f"{memory.total:,.0f} of {memory.limit:,.0f} MiB mapped; "
            f"{self.source})"
        )


@dataclass(frozen=True, repr=False)
class Phone:
    """A phone with its software. All results are modelled from the numbers of its profile.

    Models are given as a shape: a name of the package (`llada_8b`), the path of a YAML file, or a
    `ModelConfig`. No weights are needed.
    """

    profile: Profile
    system: System = field(default_factory=System)
    """The software."""
    quant: Quant = "int4_block32"
    """Format of the stored weights."""

    def __post_init__(self) -> None:
        require_choice("quant", self.quant, Quant)
        self.profile.kernels(self.system.kernels)

    def __repr__(self) -> str:
        """Describes the phone in one line."""
        software = (f"{f.name}={getattr(self.system, f.name)!r}" for f in fields(System))
        return f"Phone({self.profile.soc}, {self.profile.phone}: {', '.join(software)})"

    def time(
        self,
        run: Any,
        shape: Shape,
        *,
        row: int = 0,
        planner: str | None = None,
        session: Session | None = None,
    ) -> ModelledRun:
        """Returns time, energy and memory of a decoding run with a model of this shape.

        The trace may be from another model, for example a small one. Then the result is for a model
        of this shape that decodes in the same way, and its `source` contains this.

        Args:
          run: the `lj.Trace` of `generate(..., trace=True)`, or a custom `Workload`.
          shape: the shape of the model that runs on the phone.
          row: the batch row of the trace. It is timed as if it was decoded alone.
          planner: `greedy` or `steady`, to stage weights by the plan of a planner. None: by the
            simple rule of the phone's runtime.
          session: state of the phone, if it is known, for example `profile.COOL`. None: a typical
            session of the profile, whose spread is part of the interval.

        Raises ValueError if `run` is not a trace or has no such row, if the model's canvas is too
        short, or if there is no plan. Also for a session with a slowdown of 0 or less.
        """
        graphs = graphs_of(shape, self.quant)
        require(
            isinstance(run, Workload) or hasattr(run, "cache_length"),
            f"run is {type(run).__name__}; allowed: the trace of `generate(..., trace=True)`, or a "
            "Workload",
        )
        workload = run if isinstance(run, Workload) else from_trace(run, graphs.model, row)
        plan = None
        if planner is not None:
            plan = plan_swaps(planner, workload, graphs, self.profile, self.system)
        timer = self.run_timer(graphs.model, workload.canvas, session=session, plan=plan)
        # Uncertainty prices the run once per number, so it uses a simpler, nearly equal workload.
        latency = timer.uncertain(workload.with_mean_head_rows())
        result = simulate(workload, timer.timer, timer.session.slowdown)
        scale = result.seconds / latency.seconds if latency.seconds else 1.0
        low, high = (bound * scale for bound in latency.bounds)
        factor = math.exp(TWO_SIDED * math.hypot(latency.relative, POWER_SPREAD))
        sizes = {"canvas": workload.canvas, "rows": max(f.rows for f in workload.forwards)}
        return ModelledRun(
            **vars(result),
            soc=self.profile.soc,
            shape=shape_name(shape),
            interval=(low, high),
            joules=(result.energy.joules / factor, result.energy.joules * factor),
            doubts=latency.largest,
            footprint=footprint(self.system, graphs.model, self.profile.memory, **sizes),
            plan=plan,
        )

    def simulated(self, workload: Workload, timer: ForwardTimer) -> SimulatedRun:
        """Returns the result of `time` without its intervals, which take most of its time.

        Args:
          timer: a timer of this phone (`Phone.timer`).
        """
        return simulate(workload, timer, self.profile.session.typical(self.system.body).slowdown)

    def run_timer(
        self,
        shape: Shape,
        canvas: int = CANVAS,
        *,
        session: Session | None = None,
        plan: SwapPlan | None = None,
    ) -> RunTimer:
        """Returns what times runs for `time`, to time many runs of one canvas with their
        uncertainty. Its arguments are those of `time` and `timer`."""

        def timer(profile: Profile) -> ForwardTimer:
            return replace(self, profile=profile).timer(shape, canvas, plan)

        session = session or self.profile.session.typical(self.system.body)
        require(
            session.slowdown > 0 and session.spread >= 0,
            f"session is {session}; allowed: a slowdown above 0 and a spread of 0 or more",
        )
        on_npu = self.system.body == "npu"
        spread = self.profile.kernels(self.system.kernels).export_spread if on_npu else 0.0
        return RunTimer(self.profile, timer, self.system.uses, session, spread)

    def latency_table(
        self, shape: Shape, rows: Sequence[int] = ROWS, *, canvas: int = CANVAS
    ) -> LatencyTable:
        """Returns milliseconds of a step by its rows, for `SamplerConfig.latency_table`.

        Args:
          rows: numbers of rows, ascending, at most `canvas`. The head runs for all rows.
          canvas: positions. The rows are the last ones and read the others from the cache.

        Raises ValueError if the rows are not ascending or exceed the canvas.
        """
        buckets = ascending_counts("rows", rows)
        require(
            buckets[-1] <= canvas,
            f"rows is {list(buckets)}; allowed: up to the phone's canvas ({canvas})",
        )
        timer = self.timer(shape, canvas)
        steps = [timer.step(Forward(n, round_cache(canvas - n), n)) for n in buckets]
        return LatencyTable(rows=buckets, ms=tuple(1e3 * step.seconds for step in steps))

    def row_budget(self, shape: Shape, *, canvas: int = CANVAS) -> int | None:
        """Returns the largest number of rows whose activations fit, for `SamplerConfig.row_budget`.

        It is None if the body is on the CPU, which has no such limit. Raises ValueError if not even
        one row fits.
        """
        resident = self.timer(shape, canvas).transfers.resident_mib
        if self.system.body == "cpu" or resident is None:
            return None
        model, memory = graphs_of(shape, self.quant).model, self.profile.memory
        return max_rows(self.system, model, memory, canvas=canvas, resident=resident)

    def plan(
        self, shape: Shape, planner: str = "steady", *, rows: int = 32, canvas: int = CANVAS
    ) -> SwapPlan:
        """Returns a plan of the NPU's address space: resident weights, and transfers of a step.

        Args:
          planner: `greedy` (the planner of arXiv 2606.13740) or `steady`.
          rows: rows of a step, the last ones of the canvas.
          canvas: positions whose keys and values must fit.

        Raises ValueError for an unknown planner, or if it finds no plan, with the reason.
        """
        require(0 < rows <= canvas, f"rows is {rows}; allowed: 1 to canvas ({canvas})")
        step = Workload((Forward(rows, round_cache(canvas - rows), rows),), canvas, 0, "one step")
        graphs = graphs_of(shape, self.quant)
        return plan_swaps(planner, step, graphs, self.profile, self.system)

    def calibrate(
        self,
        measurements: "Sequence[Measurement] | str | PathLike[str]",
        shape: Shape,
        *,
        name: str = "mine",
    ) -> "Calibration":
        """Returns the profile of another phone from measurements, with this phone as the prior.

        Args:
          measurements: rows, or a CSV file or folder of them (`read_measurements`). Rows that are
            held out are predicted instead of fitted.
          shape: shape of the timed graphs, which ran with this phone's `kernels` and `cpu`.
          name: name of the new profile.

        Raises ValueError for invalid rows, fewer than three rows, and rows that this phone's
        profile rules out. Warns of rows that contradict the others.
        """
        from llada_jax.phones.calibration.calibrate import calibrate  # loads SciPy
        from llada_jax.phones.calibration.measurements import read_measurements

        if isinstance(measurements, str | PathLike):
            measurements = read_measurements(measurements)
        software = {"kernels": self.system.kernels, "cpu": self.system.cpu}
        return calibrate(measurements, self.profile, shape, name=name, **software)

    def timer(
        self, shape: Shape, canvas: int = CANVAS, plan: SwapPlan | None = None
    ) -> ForwardTimer:
        """Returns a timer of single forwards and workloads, for sweeps: it computes no intervals.

        Args:
          plan: a plan for staging, or None for the rule of the phone's runtime.
        """
        graphs = graphs_of(shape, self.quant)
        transfers = None if plan is None else plan.transfers_on(self.profile)
        return ForwardTimer(graphs, self.profile, self.system, canvas, transfers)


def phone(
    name_or_path: str | PathLike[str], *, quant: Quant = "int4_block32", **software: Any
) -> Phone:
    """Returns a phone of the package by its SoC, or a custom one by the path of its profile.

    Args:
      name_or_path: `SM8550`, `SM8650`, `SM8750`, `SM8850`, or the path of a YAML file in which each
        number is `{value, unit, tag, source}`.
      quant: format of the stored weights.
      software: fields of `llada_jax.phones.system.System`, for example `runtime="delayed"`.

    Raises ValueError for an unknown phone or setting, and for an invalid profile.
    """
    names = [field.name for field in fields(System)]
    for name in software:
        require(name in names, f"{name} is not a setting of a phone; allowed: {', '.join(names)}")
    return Phone(load_profile(name_or_path), System(**software), quant)
