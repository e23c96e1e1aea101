"""The Chrome trace: the fields that its format asks of each event."""

import json
from itertools import pairwise

import pytest

from llada_jax.phone.chrome_trace import chrome_trace, write_chrome_trace
from llada_jax.phone.forward_timer import ForwardTimer
from llada_jax.phone.simulate import simulate
from llada_jax.phone.system import System
from llada_jax.phone.timeline import LaneTask, run
from llada_jax.phone.workload import Forward, Workload
from tests.phone.small import GRAPHS, PHONE

WORKLOAD = Workload((Forward(40, 0, 32), Forward(32, 32, 16, 2, 1)), 32, 8, "a test")


@pytest.fixture
def timeline():
    return simulate(WORKLOAD, ForwardTimer(GRAPHS, PHONE, System())).timeline()


def check(trace: dict) -> None:
    """The JSON object format of the trace event format: metadata and complete events."""
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str) and event["name"]
        assert type(event["pid"]) is int and type(event["tid"]) is int
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")
            assert set(event["args"]) <= {"name", "sort_index"}
        else:
            assert event["ph"] == "X"
            assert event["ts"] >= 0 and event["dur"] >= 0


def test_the_trace_keeps_to_the_format(timeline):
    trace = chrome_trace(timeline, "a phone")
    check(json.loads(json.dumps(trace, allow_nan=False)))
    assert trace["otherData"] == {"kind": "modelled"}


def test_every_lane_is_named_and_every_event_lies_on_one(timeline):
    events = chrome_trace(timeline, "a phone")["traceEvents"]
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(named.values()) == {"NPU", "Staging", "CPU (head, revision)"}
    assert {e["tid"] for e in events if e["ph"] == "X"} <= set(named)


def test_complete_events_of_a_lane_do_not_overlap_and_end_with_the_run(timeline):
    events = [e for e in chrome_trace(timeline, "a phone")["traceEvents"] if e["ph"] == "X"]
    for lane in {event["tid"] for event in events}:
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["tid"] == lane)
        assert all(a[1] <= b[0] + 0.01 for a, b in pairwise(mine))
    assert max(e["ts"] + e["dur"] for e in events) == pytest.approx(timeline.seconds * 1e6, abs=0.1)


def test_times_are_microseconds():
    trace = chrome_trace(run([LaneTask("a", "npu", 0.25)], 50), "one")
    (event,) = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert (event["ts"], event["dur"]) == (0, 250_000)


def test_the_file_is_whole_or_not_there(timeline, tmp_path):
    write_chrome_trace(timeline, "a phone", tmp_path / "trace.json")
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    check(json.loads((tmp_path / "trace.json").read_text()))
