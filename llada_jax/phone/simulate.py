"""A decoding run on a phone: forwards become tasks on lanes, and their times a latency.

The step is the unit: the CPU's revisions are merged at its end (the paper's delayed merge), so no
lane reaches into the next one. Equal forwards therefore take equal time and are simulated once.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from llada_jax.config import (
    LatencyTable,
    ModelConfig,
    ascending_counts,
    require,
    require_choice,
)
from llada_jax.lowered import Lowered
from llada_jax.phone.cost import StepCost, UnknownOperation, price_on_cpu, price_on_npu
from llada_jax.phone.energy import Energy, energy_of, total_energy
from llada_jax.phone.memory import MIB, Runtime, Staging, most_rows, staging_for, weights_mib
from llada_jax.phone.profile import CpuClass, CpuKernels, Profile
from llada_jax.phone.step_tasks import Body, PlannedStaging, step_in_a_loop, steps_tasks
from llada_jax.phone.timeline import Task, Timeline, breakdown, run
from llada_jax.phone.workload import Forward, Workload, distinct, rounded

Processor = Literal["npu", "cpu"]
ScoresOn = Literal["cpu", "npu", "sampling_engine"]
"""The CPU has its own copy of the head. On the NPU, the product is the kernels'; what makes tokens
and confidences of the logits is their vector work, or that of an attached sampling engine."""


class GraphsLike(Protocol):
    """Where lowered steps come from: one layer stands for all, one chunk of the head too."""

    model: ModelConfig
    n_layers: int
    head_chunks: float

    def layer(self, rows: int, cache: int, /) -> Lowered: ...
    def head(self, rows: int, /) -> Lowered: ...


class SamplingEngineLike(Protocol):
    """What `llada_jax.sampling_engine.attached` gives."""

    def scores(self, rows: int, gbps: float, /) -> tuple[float, float]:
        """Seconds, and bytes of memory, from the logits of rows to their tokens and confidences,
        where memory gives the NPU so many GB/s."""
        ...


@dataclass(frozen=True, kw_only=True)
class System:
    """Which software runs where."""

    body: Processor = "npu"
    kernels: str = "llada_cpp"
    """NPU kernel class of the body."""
    cpu: CpuClass = "plain"
    """CPU kernel class of the body on the CPU, and of revisions."""
    head: CpuClass = "tuned"
    """CPU kernel class of the head, where the body is on the NPU and the head is not."""
    scores_on: ScoresOn = "cpu"
    """Where the head runs."""
    runtime: Runtime = "swap"
    resident_mib: float = 3072

    def __post_init__(self) -> None:
        require_choice("body", self.body, Processor)
        require_choice("cpu", self.cpu, CpuClass)
        require_choice("head", self.head, CpuClass)
        require_choice("scores_on", self.scores_on, ScoresOn)
        require(
            self.body == "npu" or self.scores_on == "cpu",
            f"scores_on is {self.scores_on!r}; allowed: 'cpu', where the body is on the CPU",
        )
        require_choice("runtime", self.runtime, Runtime)
        value = self.resident_mib
        require(value >= 0, f"resident_mib is {value}; allowed: 0 or more")


class Simulated(NamedTuple):
    """A run on a phone: all numbers are modelled."""

    workload: Workload
    seconds: float
    parts: dict[str, float]
    """Where the seconds go; they add up to `seconds`."""
    energy: Energy
    steps: dict[Forward, Timeline]
    """Each kind of forward alone."""
    unknown: tuple[UnknownOperation, ...]

    def timeline(self, first: int = 0, last: int | None = None) -> Timeline:
        """The events of some forwards, one after the other; the first one starts at 0."""
        events, now = [], 0.0
        chosen = list(enumerate(self.workload.forwards))[first:last]
        for index, forward in chosen:
            step = self.steps[forward]
            for event in step.shifted(now).events:
                task = event.task._replace(name=f"{event.task.name}, step {index}")
                events.append(event._replace(task=task))
            now += step.seconds
        return Timeline(tuple(events))


def simulate(
    workload: Workload,
    graphs: GraphsLike,
    profile: Profile,
    system: System | None = None,
    staging: Staging | PlannedStaging | None = None,
    engine: SamplingEngineLike | None = None,
) -> Simulated:
    """Latency, breakdown and energy of a run: sums over its forwards.

    `staging` is what each forward stages, by a plan or in all; by default what `system.runtime`
    gives. `engine` is what `scores_on="sampling_engine"` needs.
    """
    phone = ForwardTimer(graphs, profile, system or System(), workload.canvas, staging, engine)
    steps: dict[Forward, Timeline] = {}
    parts: dict[str, float] = {}
    energies = []
    for forward, count in distinct(workload.forwards):
        step = steps[forward] = phone.step(forward)
        for name, seconds in breakdown(step).items():
            parts[name] = parts.get(name, 0.0) + count * seconds
        energies.append((energy_of(step, profile.power), count))
    energy = total_energy(energies)
    return Simulated(workload, energy.seconds, parts, energy, steps, phone.unknown())


def latency(
    workload: Workload, graphs: GraphsLike, profile: Profile, system: System | None = None
) -> float:
    """Seconds of a run alone: what fits and sweeps need."""
    return ForwardTimer(graphs, profile, system or System(), workload.canvas).latency(workload)


class ForwardTimer:
    """Prices forwards on one phone with one software."""

    def __init__(
        self,
        graphs: GraphsLike,
        profile: Profile,
        system: System,
        canvas: int = 0,
        staging: Staging | PlannedStaging | None = None,
        engine: SamplingEngineLike | None = None,
    ) -> None:
        attached = system.scores_on == "sampling_engine"
        require(
            engine is not None or not attached,
            "engine is None; allowed: a sampling engine, where scores_on is 'sampling_engine'",
        )
        require(
            system.scores_on == "cpu" or not isinstance(staging, PlannedStaging),
            f"scores_on is {system.scores_on!r} with a plan; allowed: 'cpu'",
        )
        self._graphs, self._profile, self._system = graphs, profile, system
        self._canvas = canvas
        self._kernels = profile.kernels(system.kernels)
        self._cpu = profile.cpu_kernels(system.cpu)
        self._head = profile.cpu_kernels(system.head)
        on_npu = system.body == "npu"
        self._staging = staging or (self._by_rule(canvas) if on_npu else Staging())
        self._engine = engine if attached else None
        self._unknown: dict[UnknownOperation, None] = {}
        self._steps: dict[Forward, Timeline] = {}

    def _by_rule(self, canvas: int) -> Staging:
        profile, system = self._profile, self._system
        return staging_for(
            system.runtime,
            self._graphs.model,
            profile.memory,
            profile.mapping,
            resident_budget_mib=system.resident_mib,
            canvas=canvas,
            head=system.scores_on != "cpu",
        )

    def unknown(self) -> tuple[UnknownOperation, ...]:
        """Operations that were priced as something else, in all steps so far."""
        return tuple(self._unknown)

    def step(self, forward: Forward) -> Timeline:
        """One forward, from its inputs to its merged outputs; equal ones are simulated once."""
        if forward not in self._steps:
            self._steps[forward] = self._simulated(forward)
        return self._steps[forward]

    def _simulated(self, forward: Forward) -> Timeline:
        gbps, staging = self._profile.memory.dram_gbps, self._staging
        if self._system.body == "cpu":
            return run(list(self._on_cpu(forward)), gbps)
        if isinstance(staging, Staging):
            return run(list(self._on_npu(forward, staging)), gbps)
        tasks = list(self._as_planned(forward, staging))
        return step_in_a_loop(run(tasks, gbps), "head")

    def latency(self, workload: Workload) -> float:
        """Seconds of a run."""
        kinds = distinct(workload.forwards)
        return math.fsum(count * self.step(forward).seconds for forward, count in kinds)

    def latency_table(self, rows: Sequence[int]) -> LatencyTable:
        """For `SamplerConfig.latency_table`: steps of so many rows, each of which is scored, late
        on the phone's canvas.

        Args:
          rows: ascending, at most the canvas.
        """
        buckets = ascending_counts("rows", rows)
        require(
            buckets[-1] <= self._canvas,
            f"rows is {list(buckets)}; allowed: up to the phone's canvas ({self._canvas})",
        )
        forwards = (Forward(n, rounded(self._canvas - n), n) for n in buckets)
        return LatencyTable(rows=buckets, ms=tuple(1e3 * self.step(f).seconds for f in forwards))

    def row_budget(self) -> int | None:
        """For `SamplerConfig.row_budget`: the most rows whose activations find room on the phone's
        canvas. None where nothing says so: for a body on the CPU, and beside a planner's plan.

        Raises ValueError where not even one row finds room.
        """
        system, staging, model = self._system, self._staging, self._graphs.model
        if system.body == "cpu" or isinstance(staging, PlannedStaging):
            return None
        head = system.scores_on != "cpu"
        return most_rows(
            system.runtime,
            model,
            self._profile.memory,
            canvas=self._canvas,
            resident=weights_mib(model, head=head) - staging.copied_bytes / MIB,
            head=head,
        )

    def staging(self) -> Staging | PlannedStaging:
        """What each forward stages."""
        return self._staging

    def _on_cpu(self, forward: Forward) -> Iterator[Task]:
        layer = self._price_on_cpu(self._graphs.layer(forward.rows, forward.cache), self._cpu)
        yield from self._layers(layer, "cpu", ())
        yield self._head_task(forward, self._cpu, "cpu")

    def _on_npu(self, forward: Forward, staging: Staging) -> Iterator[Task]:
        layer = self._npu_layer(forward)
        if forward.refreshed:
            yield self._refresh_task(forward)
        yield from self._call()
        staged = list(self._staging_tasks(staging))
        yield from staged
        yield from self._layers(layer, "npu", tuple(task.name for task in staged))
        if self._system.scores_on == "cpu":
            yield self._head_task(forward, self._head, "cpu")
        elif forward.head_rows:
            yield self._head_on_npu(forward.head_rows)

    def _as_planned(self, forward: Forward, planned: PlannedStaging) -> Iterator[Task]:
        layer, count = self._npu_layer(forward), self._graphs.n_layers
        parts = {name: count * seconds for name, seconds in layer.by_engine.items() if seconds}
        body = Body(count * layer.seconds, count * layer.dram_bytes, parts)
        revision = [self._refresh_task(forward)] if forward.refreshed else []
        cpu = (*revision, self._head_task(forward, self._head, "cpu"))
        return steps_tasks(planned, body, next(self._call(), None), cpu)

    def _npu_layer(self, forward: Forward) -> StepCost:
        lowered = self._graphs.layer(forward.rows, forward.cache)
        return self._noted(price_on_npu(lowered, self._kernels, self._profile.memory))

    def _call(self) -> Iterator[Task]:
        overhead = self._kernels.step_overhead_us * 1e-6
        if overhead:
            yield Task("call", "npu", overhead, parts={"overhead": overhead})

    def _price_on_cpu(self, lowered: Lowered, kernels: CpuKernels) -> StepCost:
        return self._noted(price_on_cpu(lowered, kernels, self._profile.memory))

    def _noted(self, cost: StepCost) -> StepCost:
        self._unknown.update(dict.fromkeys(cost.unknown))
        return cost

    def _layers(self, cost: StepCost, lane: Processor, staged: tuple[str, ...]) -> Iterator[Task]:
        parts: dict[str, float] = {n: s for n, s in cost.by_engine.items() if s}
        for index in range(self._graphs.n_layers):
            name = f"layer {index}"
            needs = (f"stage {index}",) if f"stage {index}" in staged else ()
            yield Task(name, lane, cost.seconds, cost.dram_bytes, needs, parts)

    def _staging_tasks(self, staging: Staging) -> Iterator[Task]:
        """One for each layer. Two slots: a copy waits for the layer before the last to be done."""
        count = self._graphs.n_layers
        if not staging.seconds:
            return
        for index in range(count):
            seconds, copied = staging.fixed_seconds / count, staging.copied_bytes / count
            seconds += copied / staging.copy_bytes_per_second
            events = _share(staging.events, index, count)
            seconds += events * staging.event_seconds
            if not seconds:
                continue
            before = index - (2 if staging.overlapped else 1)
            needs = (f"layer {before}",) if before >= 0 else ()
            kind = "mapping" if events else "staging"
            # A copy reads and writes memory.
            yield Task(f"stage {index}", "staging", seconds, 2 * copied, needs, {kind: seconds})

    def _head_task(self, forward: Forward, kernels: CpuKernels, lane: Processor) -> Task:
        needs = (f"layer {self._graphs.n_layers - 1}",)
        if not forward.head_rows:
            return Task("head", lane, 0.0, 0.0, needs)
        seconds, dram = self._head_cost(forward.head_rows, kernels)
        return Task("head", lane, seconds, dram, needs, {"head": seconds})

    def _head_on_npu(self, rows: int) -> Task:
        """In the NPU's order after the last layer."""
        lowered = self._graphs.head(rows)
        chunk = self._noted(price_on_npu(lowered, self._kernels, self._profile.memory))
        count, vector = self._graphs.head_chunks, chunk.by_engine["vector"]
        product, scores, dram = (chunk.seconds - vector) * count, vector * count, 0.0
        if self._engine:
            scores, dram = self._engine.scores(rows, self._kernels.dma_gbps)
        parts = {"head": product, "scores": scores}
        return Task("head", "npu", product + scores, chunk.dram_bytes * count + dram, (), parts)

    def _head_cost(self, rows: int, kernels: CpuKernels) -> tuple[float, float]:
        """Seconds and bytes of the whole vocabulary."""
        chunk = self._price_on_cpu(self._graphs.head(rows), kernels)
        return chunk.seconds * self._graphs.head_chunks, chunk.dram_bytes * self._graphs.head_chunks

    def _refresh_task(self, forward: Forward) -> Task:
        """Some scattered rows through all layers, and the head of those that are scored."""
        lowered = self._graphs.layer(forward.refreshed, forward.cache)
        layer = self._price_on_cpu(lowered, self._cpu)
        seconds, dram = self._head_cost(forward.rescored, self._head)
        seconds += layer.seconds * self._graphs.n_layers
        dram += layer.dram_bytes * self._graphs.n_layers
        return Task("revision", "cpu", seconds, dram, (), {"revision": seconds})


def _share(total: int, index: int, count: int) -> int:
    """How many of `total` events, spread evenly over `count` layers, fall on one of them."""
    return (index + 1) * total // count - index * total // count
