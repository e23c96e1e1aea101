"""The trace for Perfetto: tracks, slices, arrows and counters, read back from its protobuf."""

from collections import defaultdict
from itertools import pairwise

import pytest

from llada_jax.phones.perfetto_trace import Counters, perfetto_trace
from llada_jax.phones.simulate import ForwardTimer, energy_of, simulate
from llada_jax.phones.system import System
from llada_jax.phones.timeline import LaneTask, run
from llada_jax.phones.workload import Forward, Workload
from llada_jax.swap.address_space import MIB
from tests.phones.small import GRAPHS, PHONE

pytest.importorskip("perfetto", reason="needs the extra plots")

WORKLOAD = Workload((Forward(40, 0, 32), Forward(32, 32, 16, 2, 1)), 32, 8, "a test")
COUNTERS = Counters(PHONE.power, 300.0)


@pytest.fixture(scope="module")
def timeline():
    return simulate(WORKLOAD, ForwardTimer(GRAPHS, PHONE, System())).timeline()


def read(content: bytes):
    """Returns the track descriptors by id, and the events of each track by its name."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    tracks, events = {}, defaultdict(list)
    for packet in Trace.FromString(content).packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            tracks[track.uuid] = track
        else:
            assert packet.track_event.track_uuid in tracks, (
                "a track must be described before its first event"
            )
            events[packet.track_event.track_uuid].append((packet.timestamp, packet.track_event))
    return tracks, {tracks[uuid].name: of for uuid, of in events.items()}


def slices(events):
    """Returns start, end and first event of each slice. Slices must not be nested."""
    assert [event.type for _, event in events] == [1, 2] * (len(events) // 2)
    pairs = list(zip(events[::2], events[1::2], strict=True))
    return [(start, end, event) for (start, event), (end, _) in pairs]


def test_every_task_is_on_the_track_of_its_lane(timeline):
    tracks, events = read(perfetto_trace(timeline, "a phone", COUNTERS))
    assert {t.process.process_name for t in tracks.values() if t.process.pid} == {"a phone"}
    shown = [event for event in timeline.events if event.end > event.start]
    for lane, name in (("npu", "NPU"), ("staging", "Staging"), ("cpu", "CPU (head, revision)")):
        in_lane = [event for event in shown if event.task.lane == lane]
        on_track = slices(events.get(name, []))
        assert [event.name for *_, event in on_track] == [event.task.name for event in in_lane]
        assert all(a[1] <= b[0] for a, b in pairwise(on_track))
        for (start, end, _), event in zip(on_track, in_lane, strict=True):
            assert (start, end) == (round(event.start * 1e9), round(event.end * 1e9))


def test_arrows_connect_transfers_and_the_tasks_that_need_them():
    tasks = [
        LaneTask("weights", "staging", 0.2, 1e9),
        LaneTask("first", "npu", 0.1),
        LaneTask("second", "npu", 0.1, needs=("weights", "first")),
    ]
    _, events = read(perfetto_trace(run(tasks, 50), "a phone", COUNTERS))
    ((*_, weights),) = slices(events["Staging"])
    (*_, first), (*_, second) = slices(events["NPU"])
    assert list(weights.flow_ids) == list(second.terminating_flow_ids) != []
    assert not first.flow_ids and not first.terminating_flow_ids
    notes = {note.name: note.double_value for note in second.debug_annotations}
    assert notes["waited, ms"] == pytest.approx(100)


def test_counters_add_up_to_energy_and_traffic(timeline):
    tracks, events = read(perfetto_trace(timeline, "a phone", COUNTERS))
    units = {track.name: track.counter.unit_name for track in tracks.values()}
    assert (units["memory"], units["power"]) == ("GB/s", "W")

    def total(name):
        pairs = pairwise(events[name])
        return sum((b - a) / 1e9 * event.double_counter_value for (a, event), (b, _) in pairs)

    assert total("power") == pytest.approx(energy_of(timeline, PHONE.power).joules, rel=1e-4)
    traffic = sum(e.task.dram_bytes for e in timeline.events if e.end > e.start)
    assert total("memory") == pytest.approx(traffic / 1e9, rel=1e-4)
    assert {event.double_counter_value for _, event in events["mapped and in use"]} == {300.0}


def test_copied_weights_are_in_use_until_their_last_use():
    copy = 2 * 100 * MIB  # read and written
    tasks = [
        LaneTask("one", "staging", 0.2, copy),
        LaneTask("other", "staging", 0.2, copy),
        LaneTask("first", "npu", 0.3, needs=("one",)),
        LaneTask("second", "npu", 0.1, needs=("other",)),
    ]
    _, events = read(perfetto_trace(run(tasks, 50), "a phone", COUNTERS))
    found = [(at / 1e9, e.double_counter_value) for at, e in events["mapped and in use"]]
    expected = [(0.0, 400.0), (0.2, 500.0), (0.5, 400.0), (0.6, 300.0)]
    assert found == [pytest.approx(point) for point in expected]


def test_the_steps_of_a_plan_have_a_separate_counter(timeline):
    curve = [(0.0, 310.0), (0.5, 305.0)]
    tracks, events = read(perfetto_trace(timeline, "a phone", COUNTERS._replace(plan_mapped=curve)))
    found = [(at / 1e9, e.double_counter_value) for at, e in events["mapped and in use"]]
    assert found == curve  # without the timeline of the run
    (track,) = (t for t in tracks.values() if t.name == "mapped and in use")
    assert tracks[track.parent_uuid].process.process_name == "the plan's own steps, modelled"


def test_measured_forwards_have_a_track(timeline):
    content = perfetto_trace(timeline, "a phone", COUNTERS, [0.5, 0.25])
    _, events = read(content)
    found = [(start, end, event.name) for start, end, event in slices(events["forwards"])]
    assert found == [(0, 5e8, "forward 0"), (5e8, 7.5e8, "forward 1")]
