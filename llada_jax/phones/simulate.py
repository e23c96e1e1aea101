"""A decoding run on a phone: its forwards as tasks on the lanes, their times and energies summed.

The step is the unit: the CPU's revisions are merged at its end (the paper's delayed merge), so no
lane reaches into the next one. Equal forwards therefore take equal time and are simulated once.
Power is of the whole phone, measured at the battery while one processor, or both, worked. Published
joules are often idle-subtracted, so both are given.
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
from llada_jax.phones.routed_layers import ASSUMED, Price, experts_by_rows, layer_costs
from llada_jax.phones.system import Processor, System
from llada_jax.phones.timeline import LaneTask, TimedTask, Timeline, breakdown, busy_seconds, run
from llada_jax.phones.workload import Forward, Workload


class GraphsLike(Protocol):
    """Where lowered steps come from: one dense layer stands for all, one chunk of the head too."""

    model: ModelConfig
    head_chunks: float

    def layer(self, rows: int, cache: int, /) -> Lowered: ...
    def head(self, rows: int, /) -> Lowered: ...


class ForwardTimer:
    """Prices forwards of a model on one phone with one software.
    Keys and values of a canvas must find room. What each forward stages is by default what the
    system's runtime does. Raises ValueError where nothing could run.
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
        host, head = profile.cpu_kernels(system.cpu), profile.cpu_kernels(system.head)
        self._on_npu = partial(price_on_npu, kernels=self._kernels, memory=memory, host=host)
        self._on_cpu = partial(price_on_cpu, kernels=host, memory=memory)
        self._head = partial(price_on_cpu, kernels=head, memory=memory)
        self.transfers = transfers or transfers_by_rule(system, graphs.model, profile, canvas)
        """What each forward stages."""
        self.step = cache(self._step)
        self._layers = cache(self._layer_costs)
        self._head_cost = cache(self._cost_of_head)

    def _step(self, forward: Forward) -> Timeline:
        """Simulates one forward, from its inputs to its merged outputs; equal ones once."""
        return run(self._tasks(forward), self.profile.memory.dram_gbps)

    def latency(self, workload: Workload) -> float:
        """Returns the seconds of a run."""
        kinds = Counter(workload.forwards).items()
        return math.fsum(count * self.step(forward).seconds for forward, count in kinds)

    def body_seconds(self, forward: Forward) -> float:
        """Returns the seconds of a forward's layers on the NPU, without staging."""
        return sum_of(self._layers(self._on_npu, forward.rows, forward.cache)).seconds

    def experts_per_layer(self, workload: Workload) -> float | None:
        """Returns how many different experts a routed layer runs in a forward, on average."""
        moe = self._graphs.model.moe
        if moe is None or not workload.forwards:
            return None
        total = sum(sum(experts_by_rows(moe, each.rows).values()) for each in workload.forwards)
        return total / len(workload.forwards)

    def _tasks(self, forward: Forward) -> list[LaneTask]:
        """Returns the body with what it waits for, then the CPU's revision, then the head."""
        if self._system.body == "cpu":
            layers = _layer_tasks(self._layers(self._on_cpu, forward.rows, forward.cache), "cpu")
            return [*layers, self._head_task(forward.head_rows, self._on_cpu, layers[-1].name)]
        layers = _layer_tasks(self._layers(self._on_npu, forward.rows, forward.cache), "npu")
        beside = []
        if forward.refreshed:
            beside.append(self._revision(forward))
        if not self._system.head_on_npu:
            beside.append(self._head_task(forward.head_rows, self._head, layers[-1].name))
        elif forward.head_rows:
            cost = self._head_cost(self._on_npu, forward.head_rows)
            parts = {"head": cost.seconds - cost.vector, "scores": cost.vector}
            needs = (layers[-1].name,)
            beside.append(LaneTask("head", "npu", cost.seconds, cost.dram_bytes, needs, parts))
        overhead = self._kernels.step_overhead_us * 1e-6
        call = LaneTask("call", "npu", overhead, parts={"overhead": overhead})
        return [*[call] * bool(overhead), *_staged(layers, self.transfers), *beside]

    def _layer_costs(self, price: Price, rows: int, cache: int) -> list[StepCost]:
        layer = self._graphs.layer(rows, cache)
        return layer_costs(self._graphs.model, layer, rows, price)

    def _cost_of_head(self, price: Price, rows: int) -> StepCost:
        """Prices the head of the whole vocabulary."""
        return price(self._graphs.head(rows)).times(self._graphs.head_chunks)

    def _head_task(self, rows: int, price: Price, behind: str) -> LaneTask:
        cost = self._head_cost(price, rows) if rows else StepCost()
        parts = {"head": cost.seconds}
        return LaneTask("head", "cpu", cost.seconds, cost.dram_bytes, (behind,), parts)

    def _revision(self, forward: Forward) -> LaneTask:
        """Returns some scattered rows through all layers, and the head of those that are scored."""
        layers = self._layers(self._on_cpu, forward.refreshed, forward.cache)
        cost = sum_of([*layers, self._head_cost(self._head, forward.rescored)])
        parts = {"revision": cost.seconds}
        return LaneTask("revision", "cpu", cost.seconds, cost.dram_bytes, parts=parts)


def _staged(layers: Sequence[LaneTask], transfers: WeightTransfers) -> Iterator[LaneTask]:
    """Yields transfers, then the layers, which wait for theirs."""
    fed: dict[int | None, list[str]] = {}
    for each in transfers.transfers:
        fed.setdefault(each.feeds, []).append(each.name)
        needs = () if each.after is None else (layers[each.after].name,)
        drawn = 2 * each.copied_bytes  # a copy reads and writes memory
        parts = {each.kind: each.seconds}
        yield LaneTask(each.name, "staging", each.seconds, drawn, needs, parts)
    for number, layer in enumerate(layers):
        yield layer._replace(needs=tuple(fed.get(number, ())))


def _layer_tasks(costs: Sequence[StepCost], lane: Processor) -> list[LaneTask]:
    tasks: dict[int, LaneTask] = {}
    for cost in costs:
        if id(cost) not in tasks:
            parts = {name: seconds for name, seconds in cost.by_engine.items() if seconds}
            tasks[id(cost)] = LaneTask("layer", lane, cost.seconds, cost.dram_bytes, parts=parts)
    return [tasks[id(cost)]._replace(name=f"layer {i}") for i, cost in enumerate(costs)]


class Energy(NamedTuple):
    """Joules of the whole phone, and what is left without its idle power."""

    joules: float = 0.0
    above_idle: float = 0.0
    seconds: float = 0.0

    @property
    def watts(self) -> float:
        """On average; 0 for nothing."""
        return self.joules / self.seconds if self.seconds else 0.0


def energy_of(timeline: Timeline, power: Power) -> Energy:
    """Returns what a timeline takes from the battery, by what runs; staging keeps one core busy."""
    lanes = busy_seconds(timeline).items()
    joules = math.fsum(seconds * watts(busy, power) for busy, seconds in lanes)
    return Energy(joules, joules - power.idle_w * timeline.seconds, timeline.seconds)


def watts(busy: Sequence[str], power: Power) -> float:
    """Returns what a phone takes while these lanes are busy."""
    staging = power.core_w * ("staging" in busy)
    if "npu" in busy:
        return power.both_w if "cpu" in busy else power.npu_w + staging
    return power.cpu_w if "cpu" in busy else power.idle_w + staging


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A run on a phone: all numbers are modelled."""

    workload: Workload
    parts: dict[str, float]
    """Where the seconds go; they add up to `seconds`."""
    energy: Energy
    """Joules of the whole phone, and those above its idle power."""
    steps: dict[Forward, Timeline]
    """Each kind of forward alone."""
    source: str
    """What the numbers rest on: where the forwards come from, and which experts they take."""
    experts_per_layer: float | None
    """Different experts that a routed layer runs in a forward, on average; None without experts."""

    @property
    def seconds(self) -> float:
        """Latency of the run."""
        return self.energy.seconds

    def timeline(self, first: int = 0, last: int | None = None) -> Timeline:
        """Returns the events of some forwards, one after the other; the first one starts at 0."""
        events, now = [], 0.0
        for index, forward in list(enumerate(self.workload.forwards))[first:last]:
            step = self.steps[forward]
            for task, start, end, waited in step.events:
                names = [f"{name}, step {index}" for name in (task.name, *task.needs)]
                task = task._replace(name=names[0], needs=tuple(names[1:]))
                events.append(TimedTask(task, start + now, end + now, waited))
            now += step.seconds
        return Timeline(tuple(events))


def simulate(workload: Workload, timer: ForwardTimer, slowdown: float = 1.0) -> Simulated:
    """Returns latency, breakdown and energy of a run: sums over its forwards.

    `slowdown`: by how much the phone's session slows the run. It does the same work with less
    power: the joules above the idle ones stay.
    """
    counts = Counter(workload.forwards)
    steps = {forward: timer.step(forward) for forward in counts}
    experts = timer.experts_per_layer(workload)
    parts: dict[str, float] = {}
    energies = []
    for forward, count in counts.items():
        for name, seconds in breakdown(steps[forward]).items():
            parts[name] = parts.get(name, 0.0) + count * seconds
        energies.append([count * each for each in energy_of(steps[forward], timer.profile.power)])
    energy = Energy(*map(math.fsum, zip(*energies, strict=True)))
    if lost := (slowdown - 1) * energy.seconds:
        parts["session"] = lost
        joules = energy.joules + lost * timer.profile.power.idle_w
        energy = Energy(joules, energy.above_idle, energy.seconds + lost)
    source = workload.source + ("" if experts is None else f"; {ASSUMED}")
    return Simulated(workload=workload, parts=parts, energy=energy, steps=steps, source=source,
                     experts_per_layer=experts)  # fmt: skip
