"""Timelines as trace files for ui.perfetto.dev, in Perfetto's protobuf format."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import accumulate, count
from typing import Any, NamedTuple

from llada_jax.phones.profile import Power
from llada_jax.phones.simulate import watts
from llada_jax.phones.timeline import LANES, Timeline, intervals
from llada_jax.swap.address_space import MIB

_Curve = Sequence[tuple[float, float]]
"""Times in seconds, each with the value from then on."""
Span = tuple[float, float]
_Arrows = tuple[Sequence[int], Sequence[int]]
"""Ids of the arrows (Perfetto's flows) that start at a task, and of those that end at it."""
_NO_ARROWS: _Arrows = (), ()
_SEQUENCE_ID = 1
_MAPPED = "mapped and in use"
_TITLES = {"npu": "NPU", "staging": "Staging", "cpu": "CPU (head, revision)"}


class Counters(NamedTuple):
    """Data of the counters of a trace."""

    power: Power
    mapped_mib: float
    """Constant part of the mapped memory in use. Copies into slots are added to it."""
    plan_mapped: _Curve = ()
    """Mapped memory in use during the steps of a plan, in MiB. It replaces the counter above."""


def perfetto_trace(
    timeline: Timeline, title: str, counters: Counters, measured: Sequence[float] = ()
) -> bytes:
    """Returns the bytes of a trace file.

    It has a track per lane, an arrow from each transfer to the tasks that need it, and counters of
    memory traffic (GB/s), power (W) and mapped memory in use (MiB). The steps of a plan do not wait
    for the head, so their memory counter is in a separate process. Tasks without duration are left
    out.

    Args:
      title: name of the process.
      measured: seconds of the same forwards on the machine that recorded the run, for an additional
        process.

    Raises ImportError, which names the extra, if `perfetto` is not installed.
    """
    if find_spec("perfetto") is None:
        raise ImportError("a trace for Perfetto needs the extra `plots`: pip install .[plots]")
    trace = _PerfettoTrace()
    modelled = trace.process(title)
    lanes = {lane: trace.track(_TITLES[lane], modelled) for lane in LANES}
    arrows = _arrows(timeline)
    for event in timeline.events:
        if event.end > event.start:
            task, name = event.task, event.task.name
            details = {"waited": event.waited, "slowed": event.slowed, **task.parts}
            span = event.start, event.end
            trace.slice(lanes[task.lane], name, span, details, arrows.get(name, _NO_ARROWS))
    for name, unit, values in _counter_curves(timeline, counters):
        trace.counter(trace.track(name, modelled, unit), values)
    if counters.plan_mapped:
        track = trace.track(_MAPPED, trace.process("the plan's own steps, modelled"), "MiB")
        trace.counter(track, counters.plan_mapped)
    if measured:
        track, now = trace.track("forwards", trace.process("measured where it ran")), 0.0
        for step, seconds in enumerate(measured):
            trace.slice(track, f"forward {step}", (now, now + seconds), {}, _NO_ARROWS)
            now += seconds
    return trace.builder.serialize()


def _arrows(timeline: Timeline) -> Mapping[str, _Arrows]:
    """Returns the arrows from transfers to the tasks that need them, by the name of the task."""
    transfers = {e.task.name for e in timeline.events if e.task.lane == "staging"}
    arrows: dict[str, tuple[list[int], list[int]]] = {}
    arrow_id = 0
    for event in timeline.events:
        for need in transfers.intersection(event.task.needs):
            arrow_id += 1
            arrows.setdefault(need, ([], []))[0].append(arrow_id)
            arrows.setdefault(event.task.name, ([], []))[1].append(arrow_id)
    return arrows


def _counter_curves(timeline: Timeline, counters: Counters) -> Iterator[tuple[str, str, _Curve]]:
    """Yields the name, the unit and the curve of each counter. All end with the run."""
    now, rates, power = 0.0, [], []
    for seconds, busy in intervals(timeline):
        rates.append((now, sum(e.task.dram_bytes / (e.end - e.start) for e in busy.values()) / 1e9))
        power.append((now, watts(list(busy), counters.power)))
        now += seconds
    yield "memory", "GB/s", [*rates, (now, 0.0)]
    yield "power", "W", [*power, (now, counters.power.idle_w)]
    if not counters.plan_mapped:
        yield _MAPPED, "MiB", _mapped_curve(timeline, counters.mapped_mib)


def _mapped_curve(timeline: Timeline, constant: float) -> _Curve:
    """Returns the mapped MiB in use: copied weights until the task that needs them ends."""
    changes = {0.0: constant, timeline.seconds: 0.0}
    ends = {need: event.end for event in timeline.events for need in event.task.needs}
    for event in timeline.events:
        if event.task.lane == "staging":
            mib = event.task.dram_bytes / 2 / MIB  # a copy reads and writes memory
            for time, change in ((event.start, mib), (ends.get(event.task.name, event.end), -mib)):
                changes[time] = changes.get(time, 0.0) + change
    times = sorted(changes)
    return list(zip(times, accumulate(changes[time] for time in times), strict=True))


class _PerfettoTrace:
    """Builder of a trace's packets. All times are seconds from the start."""

    def __init__(self) -> None:
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder

        self.builder = TraceProtoBuilder()
        self._uuids = count(1)

    def process(self, title: str) -> int:
        descriptor = self._descriptor()
        descriptor.process.pid, descriptor.process.process_name = descriptor.uuid, title
        return descriptor.uuid

    def track(self, name: str, parent: int, unit: str | None = None) -> int:
        descriptor = self._descriptor()
        descriptor.name, descriptor.parent_uuid = name, parent
        descriptor.sibling_order_rank = descriptor.uuid
        if unit is not None:
            descriptor.counter.unit_name = unit
        return descriptor.uuid

    def slice(
        self, track: int, name: str, span: Span, details: Mapping[str, float], arrows: _Arrows
    ) -> None:
        event = self._event(track, span[0], "SLICE_BEGIN")
        event.name = name
        event.flow_ids.extend(arrows[0])
        event.terminating_flow_ids.extend(arrows[1])
        for part, value in details.items():
            event.debug_annotations.add(name=f"{part}, ms", double_value=value * 1e3)
        self._event(track, span[1], "SLICE_END")

    def counter(self, track: int, values: _Curve) -> None:
        for time, value in values:
            self._event(track, time, "COUNTER").double_counter_value = value

    def _descriptor(self) -> Any:
        descriptor = self.builder.add_packet().track_descriptor
        descriptor.uuid = next(self._uuids)
        return descriptor

    def _event(self, track: int, seconds: float, kind: str) -> Any:
        packet = self.builder.add_packet()
        packet.timestamp = round(seconds * 1e9)
        packet.trusted_packet_sequence_id = _SEQUENCE_ID
        event = packet.track_event
        event.track_uuid, event.type = track, getattr(event, f"TYPE_{kind}")
        return event
