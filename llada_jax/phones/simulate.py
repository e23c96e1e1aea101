"""Time and energy of a decoding run on a phone.

Each forward is a list of tasks on the lanes NPU, staging and CPU, which `timeline` simulates.
Forwards do not overlap: the CPU's revision of a step is merged at the end of that step (the delayed
merge of arXiv 2606.13740). So equal forwards take equal time and are simulated once, and a run is a
sum. Power is that of the whole phone, measured at the battery while the NPU, the CPU or both were
busy. Papers often subtract the idle power, so the energy is given with and without it.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple, Protocol

from llada_jax.config import ModelConfig
from llada_jax.lowered import Lowered
from llada_jax.phones.cost import StepCost, price_on_cpu, price_on_npu, sum_of
from llada_jax.phones.memory import WeightTransfers, transfers_by_rule
from llada_jax.phones.profile import Power, Profile
from llada_jax.phones.routed_layers import EXPERTS_ASSUMPTION, Price, experts_by_rows, layer_costs
from llada_jax.phones.system import Processor, System
from llada_jax.phones.timeline import LaneTask, TimedTask, Timeline, breakdown, busy_seconds, run
from llada_jax.phones.workload import Forward, Workload


class GraphsLike(Protocol):
    """Source of lowered steps: one dense layer that represents all, and one chunk of the head."""

    model: ModelConfig
    head_chunks: float

    def layer(self, rows: int, cache: int, /) -> Lowered: ...
    def head(self, rows: int, /) -> Lowered: ...


class ForwardTimer:
    """Computes how long forwards of a model take on one phone with one software.

    Args:
      graphs: lowered steps of the model.
      canvas: positions whose keys and values must fit into the address space.
      transfers: what each forward stages, or None for the rule of the system's runtime.

    Raises ValueError if the model cannot run, for example because it does not fit.
    """

    def __init__(
        self,
        graphs: GraphsLike,
        profile: Profile,
        system: System,
        canvas: int = 0,
        transfers: WeightTransfers | None = None,
    ) -> None:
        self._graphs, self.profile, self._system = graphs, profile, system
        self._kernels, memory = profile.kernels(system.kernels), profile.memory
        cpu, head = profile.cpu_kernels(system.cpu), profile.cpu_kernels(system.head)
        self._on_npu = partial(price_on_npu, kernels=self._kernels, memory=memory, host=cpu)
        self._on_cpu = partial(price_on_cpu, kernels=cpu, memory=memory)
        self._cpu_head = partial(price_on_cpu, kernels=head, memory=memory)
        self.transfers = transfers or transfers_by_rule(system, graphs.model, profile, canvas)
        """What each forward stages."""
        # Cached per object: sweeps ask for the same few kinds of forwards thousands of times.
        self.step = cache(self._step)
        self._layers = cache(self._layer_costs)
        self._head_cost = cache(self._whole_head_cost)

    def _step(self, forward: Forward) -> Timeline:
        """Simulates one forward, from its inputs to its merged outputs."""
        return run(self._tasks(forward), self.profile.memory.dram_gbps)

    def latency(self, workload: Workload) -> float:
        """Returns the seconds of a run."""
        kinds = Counter(workload.forwards).items()
        return math.fsum(count * self.step(forward).seconds for forward, count in kinds)

    def body_seconds(self, forward: Forward) -> float:
        """Returns the seconds of a forward's layers on the NPU, without staging."""
        return sum_of(self._layers(self._on_npu, forward.rows, forward.cache)).seconds

    def experts_per_layer(self, workload: Workload) -> float | None:
        """Returns the mean number of different experts per routed layer and forward, or None for a
        dense model."""
        moe = self._graphs.model.moe
        if moe is None or not workload.forwards:
            return None
        total = sum(sum(experts_by_rows(moe, f.rows).values()) for f in workload.forwards)
        return total / len(workload.forwards)

    def _tasks(self, forward: Forward) -> list[LaneTask]:
        """Returns the tasks of a forward: transfers and layers, the CPU's revision, the head."""
        if self._system.body == "cpu":
            layers = _layer_tasks(self._layers(self._on_cpu, forward.rows, forward.cache), "cpu")
            return [*layers, self._head_task(forward.head_rows, self._on_cpu, layers[-1].name)]
        layers = _layer_tasks(self._layers(self._on_npu, forward.rows, forward.cache), "npu")
        others = []
        if forward.refreshed:
            others.append(self._revision_task(forward))
        if not self._system.head_on_npu:
            others.append(self._head_task(forward.head_rows, self._cpu_head, layers[-1].name))
        elif forward.head_rows:
            cost = self._head_cost(self._on_npu, forward.head_rows)
            parts = {"head": cost.seconds - cost.vector, "scores": cost.vector}
            needs = (layers[-1].name,)
            others.append(LaneTask("head", "npu", cost.seconds, cost.dram_bytes, needs, parts))
        overhead = self._kernels.step_overhead_us * 1e-6
        call = LaneTask("call", "npu", overhead, parts={"overhead": overhead})
        return [*[call] * bool(overhead), *_staging_tasks(layers, self.transfers), *others]

    def _layer_costs(self, price: Price, rows: int, cache: int) -> list[StepCost]:
        layer = self._graphs.layer(rows, cache)
        return layer_costs(self._graphs.model, layer, rows, price)

    def _whole_head_cost(self, price: Price, rows: int) -> StepCost:
        return price(self._graphs.head(rows)).times(self._graphs.head_chunks)

    def _head_task(self, rows: int, price: Price, last_layer: str) -> LaneTask:
        cost = self._head_cost(price, rows) if rows else StepCost()
        parts = {"head": cost.seconds}
        return LaneTask("head", "cpu", cost.seconds, cost.dram_bytes, (last_layer,), parts)

    def _revision_task(self, forward: Forward) -> LaneTask:
        """Returns the CPU's forward of refreshed rows, with the head for rescored tokens."""
        layers = self._layers(self._on_cpu, forward.refreshed, forward.cache)
        cost = sum_of([*layers, self._head_cost(self._cpu_head, forward.rescored)])
        parts = {"revision": cost.seconds}
        return LaneTask("revision", "cpu", cost.seconds, cost.dram_bytes, parts=parts)


def _staging_tasks(layers: Sequence[LaneTask], transfers: WeightTransfers) -> Iterator[LaneTask]:
    """Yields the transfers, then the layers with the transfers as their needs."""
    by_layer: dict[int | None, list[str]] = {}
    for transfer in transfers.transfers:
        by_layer.setdefault(transfer.feeds, []).append(transfer.name)
        needs = () if transfer.after is None else (layers[transfer.after].name,)
        traffic = 2 * transfer.copied_bytes  # a copy reads and writes memory
        parts = {transfer.kind: transfer.seconds}
        yield LaneTask(transfer.name, "staging", transfer.seconds, traffic, needs, parts)
    for index, layer in enumerate(layers):
        yield layer._replace(needs=tuple(by_layer.get(index, ())))


def _layer_tasks(costs: Sequence[StepCost], lane: Processor) -> list[LaneTask]:
    # Equal layers share one StepCost object, so each kind of layer is converted once.
    tasks: dict[int, LaneTask] = {}
    for cost in costs:
        if id(cost) not in tasks:
            parts = {name: seconds for name, seconds in cost.by_engine.items() if seconds}
            tasks[id(cost)] = LaneTask("layer", lane, cost.seconds, cost.dram_bytes, parts=parts)
    return [tasks[id(cost)]._replace(name=f"layer {i}") for i, cost in enumerate(costs)]


class Energy(NamedTuple):
    """Energy of the whole phone in joules, with and without its idle power."""

    joules: float = 0.0
    above_idle: float = 0.0
    seconds: float = 0.0

    @property
    def watts(self) -> float:
        """Mean power; 0 for an empty run."""
        return self.joules / self.seconds if self.seconds else 0.0


def energy_of(timeline: Timeline, power: Power) -> Energy:
    """Returns the energy of a timeline from the power of the lanes that are busy at each time."""
    totals = busy_seconds(timeline).items()
    joules = math.fsum(seconds * watts(busy, power) for busy, seconds in totals)
    return Energy(joules, joules - power.idle_w * timeline.seconds, timeline.seconds)


def watts(busy: Sequence[str], power: Power) -> float:
    """Returns the phone's power while these lanes are busy. Staging keeps one CPU core busy, which
    is included in the power of a busy CPU."""
    staging = power.core_w * ("staging" in busy)
    if "npu" in busy:
        return power.both_w if "cpu" in busy else power.npu_w + staging
    return power.cpu_w if "cpu" in busy else power.idle_w + staging


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """Modelled time and energy of a decoding run on a phone."""

    workload: Workload
    parts: dict[str, float]
    """Seconds by cause; they add up to `seconds`."""
    energy: Energy
    steps: dict[Forward, Timeline]
    """Timeline of each different forward."""
    source: str
    """Source of the forwards, and assumptions of the model, in words."""
    experts_per_layer: float | None
    """Mean number of different experts per routed layer and forward, or None for a dense model."""

    @property
    def seconds(self) -> float:
        """Latency of the run."""
        return self.energy.seconds

    def timeline(self, first: int = 0, last: int | None = None) -> Timeline:
        """Returns the events of the forwards `first` to `last` (exclusive), starting at time 0."""
        events, now = [], 0.0
        for index, forward in list(enumerate(self.workload.forwards))[first:last]:
            step = self.steps[forward]
            for task, start, end, waited in step.events:
                names = [f"{name}, step {index}" for name in (task.name, *task.needs)]
                task = task._replace(name=names[0], needs=tuple(names[1:]))
                events.append(TimedTask(task, start + now, end + now, waited))
            now += step.seconds
        return Timeline(tuple(events))


def simulate(workload: Workload, timer: ForwardTimer, slowdown: float = 1.0) -> SimulatedRun:
    """Returns latency, breakdown and energy of a run, as sums over its forwards.

    Args:
      slowdown: factor on the time, by the state of the phone. A slow phone does the same work with
        less power, so the energy above idle does not change.
    """
    counts = Counter(workload.forwards)
    steps = {forward: timer.step(forward) for forward in counts}
    experts = timer.experts_per_layer(workload)
    parts: dict[str, float] = {}
    energies = []
    for forward, count in counts.items():
        for name, seconds in breakdown(steps[forward]).items():
            parts[name] = parts.get(name, 0.0) + count * seconds
        energy = energy_of(steps[forward], timer.profile.power)
        energies.append([count * value for value in energy])
    energy = Energy(*map(math.fsum, zip(*energies, strict=True)))
    if extra := (slowdown - 1) * energy.seconds:
        parts["session"] = extra
        joules = energy.joules + extra * timer.profile.power.idle_w
        energy = Energy(joules, energy.above_idle, energy.seconds + extra)
    source = workload.source + ("" if experts is None else f"; {EXPERTS_ASSUMPTION}")
    return SimulatedRun(workload=workload, parts=parts, energy=energy, steps=steps, source=source,
                        experts_per_layer=experts)  # fmt: skip
