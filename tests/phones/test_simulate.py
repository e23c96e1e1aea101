"""Runs on a phone: parts add up, what hides hides, and the same run takes the same time."""

import math
from dataclasses import replace

import pytest

from llada_jax.phones.cost import price_on_npu
from llada_jax.phones.graphs import graphs_of
from llada_jax.phones.memory import WeightTransfer, WeightTransfers
from llada_jax.phones.simulate import ForwardTimer, energy_of, simulate
from llada_jax.phones.system import Runtime, ScoresOn, System
from llada_jax.phones.timeline import LaneTask, run
from llada_jax.phones.uncertainty import with_uncertainty
from llada_jax.phones.workload import Forward, Workload, blockwise
from tests.phones.small import GRAPHS, PHONE

LLADA = graphs_of("llada_8b")
STEP = Forward(32, 96, 32)
SWAP = System()


def seconds(forward=STEP, **settings) -> float:
    return ForwardTimer(LLADA, PHONE, System(**settings)).step(forward).seconds


def test_parts_and_energies_add_up():
    found = simulate(blockwise(8, 64), ForwardTimer(GRAPHS, PHONE, SWAP))
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert found.timeline().seconds == pytest.approx(found.seconds)
    assert found.energy.joules == pytest.approx(energy_of(found.timeline(), PHONE.power).joules)
    timer = ForwardTimer(GRAPHS, PHONE, SWAP, found.workload.canvas)
    assert found.seconds == timer.latency(found.workload)


def test_a_part_of_the_timeline_starts_at_zero():
    found = simulate(blockwise(8, 64), ForwardTimer(GRAPHS, PHONE, SWAP))
    part = found.timeline(first=2, last=4)
    assert part.events[0].start == 0 and "step 2" in part.events[0].task.name
    step = found.steps[found.workload.forwards[2]].seconds
    assert part.seconds == pytest.approx(2 * step)


def test_copies_hide_behind_slow_kernels_and_not_behind_fast_ones():
    bare = seconds(runtime="wide")
    staged = ForwardTimer(LLADA, PHONE, SWAP).transfers.seconds
    assert bare < seconds() < bare + 0.1 * staged
    fast = seconds(kernels="vendor", runtime="wide")
    assert seconds(kernels="vendor") > fast + 0.5 * staged


def test_a_plan_can_say_what_a_forward_stages():
    plan = WeightTransfers((WeightTransfer("stage", 1.0, 1e9, feeds=31, after=30),))
    wide = ForwardTimer(LLADA, PHONE, System(runtime="wide"))
    bare = simulate(Workload((STEP,), 1, 1, "a test"), wide)
    planned = simulate(bare.workload, ForwardTimer(LLADA, PHONE, SWAP, transfers=plan))
    assert planned.seconds == pytest.approx(bare.seconds + 1.0, rel=0.01)
    assert planned.parts["staging (not hidden)"] == pytest.approx(1.0, rel=0.01)


def test_mapping_again_stops_the_npu():
    events = ForwardTimer(LLADA, PHONE, System(runtime="remap")).transfers.seconds
    assert seconds(runtime="remap") == pytest.approx(seconds(runtime="wide") + events)


def test_revision_hides_beside_the_npu_and_shares_its_memory():
    few, many = (seconds(STEP._replace(refreshed=n, rescored=n)) for n in (1, 20))
    assert few == pytest.approx(seconds(), rel=0.02)
    assert many > 1.5 * few


def test_a_revision_scores_tokens_and_not_all_of_their_rows():
    def revision(rescored: int) -> float:
        step = ForwardTimer(LLADA, PHONE, SWAP).step(STEP._replace(refreshed=8, rescored=rescored))
        return next(e.task.seconds for e in step.events if e.task.name == "revision")

    def head(rows: int) -> float:
        step = ForwardTimer(LLADA, PHONE, SWAP).step(STEP._replace(head_rows=rows))
        return next(e.task.seconds for e in step.events if e.task.name == "head")

    assert head(8) > 1.1 * head(4)
    assert revision(8) - revision(4) == pytest.approx(head(8) - head(4))


def test_a_body_on_the_cpu_leaves_the_npu_idle():
    timeline = ForwardTimer(LLADA, PHONE, System(body="cpu")).step(STEP)
    assert {event.task.lane for event in timeline.events} == {"cpu"}
    assert timeline.seconds > 5 * seconds()


def test_what_the_npu_maps_is_nothing_to_a_body_on_the_cpu():
    phone = ForwardTimer(LLADA, PHONE, System(body="cpu", runtime="none"))
    assert phone.transfers == WeightTransfers()
    with pytest.raises(ValueError, match="runtime is 'none'"):
        ForwardTimer(LLADA, PHONE, System(runtime="none"))


def test_no_head_rows_no_head():
    without = ForwardTimer(LLADA, PHONE, SWAP).step(STEP._replace(head_rows=0))
    assert [e.end - e.start for e in without.events if e.task.name == "head"] == [0]


def head_event(scores_on: ScoresOn, forward=STEP):
    system = System(runtime="wide", scores_on=scores_on)
    phone = ForwardTimer(LLADA, PHONE, system)
    (event,) = [e for e in phone.step(forward).events if e.task.name == "head"]
    return event


def test_a_head_on_the_npu_is_its_product_and_vector_work():
    task = head_event("npu").task
    assert task.lane == "npu" and task.seconds == pytest.approx(sum(task.parts.values()))
    assert task.parts["head"] > 0 and task.parts["scores"] > 0
    assert head_event("cpu").task.lane == "cpu"


def test_a_head_on_the_npu_is_staged_with_the_layers():
    def copied(runtime: Runtime, **settings) -> float:
        timer = ForwardTimer(LLADA, PHONE, System(runtime=runtime, **settings), 256)
        return sum(each.copied_bytes for each in timer.transfers.transfers)

    more = copied("swap", scores_on="npu") - copied("swap")
    model = LLADA.model
    assert more == pytest.approx(model.vocab_size * model.width * 4.5 / 8)
    assert copied("wide", scores_on="npu") == 0


def test_no_head_rows_no_head_on_the_npu():
    system = System(runtime="wide", scores_on="npu")
    events = ForwardTimer(LLADA, PHONE, system).step(STEP._replace(head_rows=0)).events
    assert all(event.task.name != "head" for event in events)


def test_power_is_that_of_what_is_busy_golden():
    tasks = [LaneTask("a", "npu", 2.0), LaneTask("b", "cpu", 1.0)]
    energy = energy_of(run(tasks, 50), PHONE.power)
    power = PHONE.power
    assert energy.joules == pytest.approx(power.both_w + power.npu_w)
    assert energy.above_idle == pytest.approx(energy.joules - 2 * power.idle_w)
    assert energy.watts == pytest.approx(energy.joules / 2)


def test_a_core_that_copies_takes_its_own_power_golden():
    tasks = [LaneTask("a", "npu", 2.0), LaneTask("b", "staging", 3.0)]
    power = PHONE.power
    joules = energy_of(run(tasks, 50), power).joules
    assert joules == pytest.approx(2 * power.npu_w + power.idle_w + 3 * power.core_w)


def test_an_empty_run_takes_nothing():
    found = simulate(Workload((), 1, 1, "a test"), ForwardTimer(GRAPHS, PHONE, SWAP))
    assert (found.seconds, found.energy.watts) == (0, 0)


def latency_of_a_small_run(phone):
    workload = blockwise(8, 32)
    return ForwardTimer(GRAPHS, phone, SWAP, workload.canvas).latency(workload)


def test_only_what_a_system_uses_is_moved_and_the_session_comes_on_top():
    everything = with_uncertainty(PHONE, latency_of_a_small_run)
    used = with_uncertainty(PHONE, latency_of_a_small_run, SWAP.uses)
    assert used == everything and used.seconds == latency_of_a_small_run(PHONE)
    assert all("vendor" not in name and "hexkl" not in name for name, _ in used.largest)
    state = with_uncertainty(PHONE, latency_of_a_small_run, SWAP.uses, spread=0.3)
    assert state.relative == pytest.approx(math.hypot(used.relative, 0.3))


def test_a_slow_session_stretches_a_run_and_not_its_work():
    workload = blockwise(8, 32)
    timer = ForwardTimer(GRAPHS, PHONE, SWAP, workload.canvas)
    cool, slow = simulate(workload, timer), simulate(workload, timer, slowdown=2.5)
    assert slow.seconds == pytest.approx(2.5 * cool.seconds)
    assert sum(slow.parts.values()) == pytest.approx(slow.seconds)
    assert slow.parts["session"] == pytest.approx(1.5 * cool.seconds)
    assert slow.energy.above_idle == cool.energy.above_idle
    assert slow.energy.watts < cool.energy.watts


def test_attention_on_the_cpu_takes_its_rate():
    kernels = replace(PHONE.npu["llada_cpp"], attention="cpu")
    step = LLADA.layer(32, 64)
    here, there = (
        price_on_npu(step, each, PHONE.memory, PHONE.cpu["plain"])
        for each in (PHONE.npu["llada_cpp"], kernels)
    )
    assert here.host == 0 < there.host and there.dma < here.dma
    with pytest.raises(ValueError, match="attention is 'cpu' without kernels of a CPU"):
        price_on_npu(step, kernels, PHONE.memory)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"body": "gpu"}, "body is 'gpu'; allowed: 'npu', 'cpu'"),
        ({"runtime": "magic"}, "runtime is 'magic'; allowed: 'none', 'remap'"),
        ({"resident_mib": -1}, "resident_mib is -1; allowed: 0 or more"),
        ({"scores_on": "gpu"}, "scores_on is 'gpu'; allowed: 'cpu', 'npu'"),
        ({"body": "cpu", "scores_on": "npu"}, "scores_on is 'npu'; allowed: 'cpu', where the body"),
        ({"head": "best"}, "head is 'best'; allowed: 'plain', 'tuned'"),
    ],
)
def test_bad_systems_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        System(**settings)


def test_kernels_of_another_phone_are_named():
    with pytest.raises(ValueError, match="kernels is 'mine'; allowed: "):
        ForwardTimer(GRAPHS, PHONE, System(kernels="mine"))
