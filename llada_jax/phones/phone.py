"""A phone as a user of the library has it: what a run would take there, and what stays mapped."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from llada_jax.config import LatencyTable, Quant, ascending_counts, require, require_choice
from llada_jax.phones.graphs import Shape, graphs_of, shape_name
from llada_jax.phones.memory import Footprint, footprint, max_rows
from llada_jax.phones.profile import Profile, load_profile
from llada_jax.phones.simulate import ForwardTimer, SimulatedRun, simulate
from llada_jax.phones.swap_plan import SwapPlan, plan_swaps
from llada_jax.phones.system import System
from llada_jax.phones.uncertainty import POWER_SPREAD, TWO_SIDED, with_uncertainty
from llada_jax.phones.workload import Forward, Workload, from_trace, round_cache

if TYPE_CHECKING:
    from llada_jax.phones.calibration.calibrate import Calibration
    from llada_jax.phones.calibration.measurements import Measurement

ROWS = (32, 64, 128, 256)
CANVAS = 256


@dataclass(frozen=True, repr=False, kw_only=True)
class ModelledRun(SimulatedRun):
    """What a decoding run would take on a phone: every number is modelled."""

    soc: str
    shape: str
    """The model that the phone runs."""
    interval: tuple[float, float]
    """95 % interval of the seconds, by the profile's doubts and the spread of its sessions."""
    joules: tuple[float, float]
    """95 % interval of the energy, whose powers are known to a factor alone."""
    doubts: tuple[tuple[str, float], ...]
    """The profile's numbers that matter most, each with the seconds that its doubt is worth."""
    footprint: Footprint
    """MiB that must be mapped at one time, and whether they fit."""
    plan: SwapPlan | None
    """The planner's plan, whose stall each forward has, where one was named."""

    @property
    def breakdown(self) -> dict[str, float]:
        """Seconds by what they go to, the largest first; they add up to `seconds`."""
        return dict(sorted(self.parts.items(), key=lambda part: -part[1]))

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens, by the seconds of the run."""
        return self.workload.tokens / self.seconds

    def __repr__(self) -> str:
        """Names the run in one line."""
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
    """A phone with its software. All that it says is modelled, from the numbers of its profile.

    A model is given as a shape: one that comes with the package by name (`llada_8b`), a YAML file
    of your own by its path, or a `ModelConfig`. No weights are needed.
    """

    profile: Profile
    system: System = field(default_factory=System)
    """Which software runs where."""
    quant: Quant = "int4_block32"
    """How the phone stores a model's weights."""

    def __post_init__(self) -> None:
        require_choice("quant", self.quant, Quant)
        self.profile.kernels(self.system.kernels)

    def __repr__(self) -> str:
        """Names the phone in one line."""
        software = (f"{each.name}={getattr(self.system, each.name)!r}" for each in fields(System))
        return f"Phone({self.profile.soc}, {self.profile.phone}: {', '.join(software)})"

    def time(
        self, run: Any, shape: Shape, *, row: int = 0, planner: str | None = None
    ) -> ModelledRun:
        """Returns what a decoding run would take for a model of this shape.

        The forwards are the trace's, whichever model it is of: a small model's run says what a
        large one's would take if it decoded alike, and `source` says whose run it is.

        Args:
          run: the `lj.Trace` of `generate(..., trace=True)`, or a `Workload` of your own.
          row: the batch row of the trace, as if it had been decoded alone.
          planner: who decides what stays mapped (`greedy`, `steady`), so that each forward waits as
            long as its plan says; None: the rule of the phone's runtime.

        Raises ValueError that names what is wrong: no trace, a row that it does not have, a canvas
        that the model cannot hold, a planner without a plan.
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

        def timer(profile: Profile) -> ForwardTimer:
            return replace(self, profile=profile).timer(graphs.model, workload.canvas, plan)

        alike, spread = (
            workload.with_mean_head_rows(),
            self.profile.session.spread(self.system.body),
        )
        sure = with_uncertainty(
            self.profile, lambda moved: timer(moved).latency(alike), self.system.uses, spread
        )
        found = self.simulated(workload, timer(self.profile))
        scale = found.seconds / sure.seconds if sure.seconds else 1.0
        low, high = (bound * scale for bound in sure.bounds)
        factor = math.exp(TWO_SIDED * math.hypot(sure.relative, POWER_SPREAD))
        most = {"canvas": workload.canvas, "rows": max(each.rows for each in workload.forwards)}
        return ModelledRun(
            **vars(found),
            soc=self.profile.soc,
            shape=shape_name(shape),
            interval=(low, high),
            joules=(found.energy.joules / factor, found.energy.joules * factor),
            doubts=sure.largest,
            footprint=footprint(self.system, graphs.model, self.profile.memory, **most),
            plan=plan,
        )

    def simulated(self, workload: Workload, timer: ForwardTimer) -> SimulatedRun:
        """Returns what `time` says of a run, priced by one of this phone's timers, without the
        interval that takes most of `time`'s own."""
        return simulate(workload, timer, self.profile.session.slowdown(self.system.body))

    def latency_table(
        self, shape: Shape, rows: Sequence[int] = ROWS, *, canvas: int = CANVAS
    ) -> LatencyTable:
        """Returns milliseconds of a step by its rows, for `SamplerConfig.latency_table`.

        Args:
          rows: buckets, ascending, at most `canvas`; each row is scored.
          canvas: positions; the rows are the last ones, and read the others from the cache.

        Raises ValueError for rows that do not ascend or are too many.
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
        """Returns the most rows whose activations find room, for `SamplerConfig.row_budget`.

        None where nothing says so: where the system runs the body on the CPU. Raises ValueError
        where not even one row finds room.
        """
        resident = self.timer(shape, canvas).transfers.resident_mib
        if self.system.body == "cpu" or resident is None:
            return None
        model, memory = graphs_of(shape, self.quant).model, self.profile.memory
        return max_rows(self.system, model, memory, canvas=canvas, resident=resident)

    def plan(
        self, shape: Shape, planner: str = "steady", *, rows: int = 32, canvas: int = CANVAS
    ) -> SwapPlan:
        """Returns a plan of the NPU's address space: what stays mapped, and what is staged when.

        Args:
          planner: `greedy` (the paper's) or `steady`.
          rows: rows of a step; they are the canvas's last ones.
          canvas: positions whose keys and values must find room.

        Raises ValueError for an unknown planner, and where it finds no plan (with the reason).
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
        """Returns a profile of one's own phone from rows measured on it; this phone is the parent.

        Args:
          measurements: rows, or a CSV file or folder of them (`read_measurements`). Those that are
            held out are predicted.
          shape: the model whose graphs were timed, on this phone's `kernels` and `cpu`.
          name: the new profile's.

        Raises ValueError that names the row and what is wrong.
        """
        from llada_jax.phones.calibration.calibrate import calibrate  # which loads SciPy
        from llada_jax.phones.calibration.measurements import read_measurements

        if isinstance(measurements, str | PathLike):
            measurements = read_measurements(measurements)
        software = {"kernels": self.system.kernels, "cpu": self.system.cpu}
        return calibrate(measurements, self.profile, shape, name=name, **software)

    def timer(
        self, shape: Shape, canvas: int = CANVAS, plan: SwapPlan | None = None
    ) -> ForwardTimer:
        """Returns what prices single forwards and workloads, for sweeps: without intervals.

        Args:
          plan: what a step stages; None: by the rule of the phone's runtime.
        """
        graphs = graphs_of(shape, self.quant)
        transfers = None if plan is None else plan.transfers_on(self.profile)
        return ForwardTimer(graphs, self.profile, self.system, canvas, transfers)


def phone(
    name_or_path: str | PathLike[str], *, quant: Quant = "int4_block32", **software: Any
) -> Phone:
    """Returns a phone that comes with the package by its SoC, or one of your own by a YAML file.

    Args:
      name_or_path: `SM8550`, `SM8650`, `SM8750`, `SM8850`, or the path of a profile in which each
        number is `{value, unit, tag, source}`.
      quant: how the phone stores weights.
      software: fields of `llada_jax.phones.system.System`, for example `runtime="delayed"`.

    Raises ValueError that lists the phones, names the profile's wrong entry, or the wrong setting.
    """
    names = [each.name for each in fields(System)]
    for name in software:
        require(name in names, f"{name} is no setting of a phone; allowed: {', '.join(names)}")
    return Phone(load_profile(name_or_path), System(**software), quant)
