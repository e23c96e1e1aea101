"""Lanes run in order, tasks wait for their needs, and memory is shared max-min fairly."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.phones.timeline import LANES, LaneTask, breakdown, busy_seconds, run, shares

GBPS = 50.0


@st.composite
def task_lists(draw):
    tasks = []
    for index in range(draw(st.integers(0, 12))):
        needs = draw(st.sets(st.sampled_from(range(index)), max_size=2)) if index else set()
        tasks.append(
            LaneTask(
                str(index),
                draw(st.sampled_from(LANES)),
                draw(st.sampled_from([0.0, 0.5, 1.0, 2.5])),
                draw(st.sampled_from([0.0, 1e9, 60e9, 200e9])),
                tuple(map(str, sorted(needs))),
            )
        )
    return tasks


@given(task_lists())
def test_lanes_keep_their_order_and_tasks_wait_for_their_needs(tasks):
    timeline = run(tasks, GBPS)
    events = {event.task.name: event for event in timeline.events}
    assert len(events) == len(tasks)
    for lane in LANES:
        in_lane = [events[task.name] for task in tasks if task.lane == lane]
        assert all(a.end <= b.start + 1e-9 for a, b in pairwise(in_lane))
    for task in tasks:
        assert all(events[need].end <= events[task.name].start + 1e-9 for need in task.needs)
        assert events[task.name].slowed >= -1e-9 and events[task.name].waited >= -1e-9


@given(task_lists())
def test_a_run_is_not_faster_than_its_longest_lane_or_the_memory(tasks):
    timeline = run(tasks, GBPS)
    for lane in LANES:
        assert timeline.seconds >= sum(t.seconds for t in tasks if t.lane == lane) - 1e-9
    traffic = sum(task.dram_bytes for task in tasks if task.seconds)
    assert timeline.seconds >= traffic / (GBPS * 1e9) - 1e-6


@given(task_lists())
def test_the_same_tasks_give_the_same_timeline(tasks):
    assert run(tasks, GBPS) == run(tasks, GBPS)


@given(task_lists())
def test_breakdown_and_busy_times_add_up_to_the_whole(tasks):
    timeline = run(tasks, GBPS)
    assert sum(breakdown(timeline).values()) == pytest.approx(timeline.seconds, abs=1e-6)
    assert sum(busy_seconds(timeline).values()) == pytest.approx(timeline.seconds, abs=1e-6)


@given(st.dictionaries(st.sampled_from(LANES), st.floats(0, 1e12)), st.floats(1e6, 1e12))
def test_memory_is_shared_max_min_fairly(demands, capacity):
    speeds = shares(demands, capacity)
    bandwidth = {lane: speeds[lane] * demand for lane, demand in demands.items()}
    assert sum(bandwidth.values()) <= capacity * (1 + 1e-9)
    slowed = [lane for lane in demands if speeds[lane] < 1 - 1e-9]
    if slowed:
        assert sum(bandwidth.values()) == pytest.approx(capacity)
        for lane in slowed:  # no lane gets more than a slowed one
            assert all(other <= bandwidth[lane] * (1 + 1e-6) for other in bandwidth.values())


def test_two_tasks_above_the_bandwidth_slow_each_other():
    tasks = [LaneTask("npu", "npu", 1.0, 40e9), LaneTask("cpu", "cpu", 1.0, 40e9)]
    timeline = run(tasks, GBPS)
    assert timeline.seconds == pytest.approx(1.6)  # 80 GB at 50 GB/s
    assert [event.slowed for event in timeline.events] == pytest.approx([0.6, 0.6])


def test_two_slots_hide_staging_behind_the_layers():
    tasks = []
    for index in range(4):
        before = (f"layer {index - 2}",) if index >= 2 else ()
        tasks.append(LaneTask(f"stage {index}", "staging", 0.5, 0, before, {"staging": 0.5}))
        tasks.append(
            LaneTask(f"layer {index}", "npu", 1.0, 0, (f"stage {index}",), {"matrix": 1.0})
        )
    timeline = run(tasks, GBPS)
    assert timeline.seconds == pytest.approx(4.5)
    assert breakdown(timeline) == pytest.approx({"matrix": 4.0, "staging (not hidden)": 0.5})


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([LaneTask("a", "npu", 1.0), LaneTask("a", "cpu", 1.0)], "task names repeat"),
        ([LaneTask("a", "npu", 1.0, needs=("b",))], r"tasks need \['b'\]"),
        (
            [LaneTask("a", "npu", 1.0, needs=("b",)), LaneTask("b", "npu", 1.0)],
            "wait for each other",
        ),
    ],
)
def test_tasks_that_cannot_run_are_named(tasks, message):
    with pytest.raises(ValueError, match=message):
        run(tasks, GBPS)
