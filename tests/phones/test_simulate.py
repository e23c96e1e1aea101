"""Simulated runs: breakdowns and energies add up, and slow kernels hide staging."""

from dataclasses import replace

import pytest

from llada_jax.phones.cost import price_on_npu
from llada_jax.phones.graphs import graphs_of
from llada_jax.phones.memory import WeightTransfer, WeightTransfers
from llada_jax.phones.simulate import ForwardTimer, energy_of, simulate
from llada_jax.phones.system import Runtime, ScoresOn, System
from llada_jax.phones.timeline import LaneTask, run
from llada_jax.phones.uncertainty import RunTimer
from llada_jax.phones.workload import Forward, Workload, blockwise
from tests.phones.small import GRAPHS, PHONE

LLADA = graphs_of("llada_8b")
STEP = Forward(32, 96, 32)
SWAP = System()


def seconds(forward=STEP, **settings) -> float:
    return ForwardTimer(LLADA, PHONE, System(**settings)).step(forward).seconds


def test_parts_and_energies_add_up():
    result = simulate(blockwise(8, 64), ForwardTimer(GRAPHS, PHONE, SWAP))
    assert sum(result.parts.values()) == pytest.approx(result.seconds)
    assert result.timeline().seconds == pytest.approx(result.seconds)
    assert result.energy.joules == pytest.approx(energy_of(result.timeline(), PHONE.power).joules)
    timer = ForwardTimer(GRAPHS, PHONE, SWAP, result.workload.canvas)
    assert result.seconds == timer.latency(result.workload)


def test_a_part_of_the_timeline_starts_at_zero():
    result = simulate(blockwise(8, 64), ForwardTimer(GRAPHS, PHONE, SWAP))
    part = result.timeline(first=2, last=4)
    assert part.events[0].start == 0 and "step 2" in part.events[0].task.name
    step = result.steps[result.workload.forwards[2]].seconds
    assert part.seconds == pytest.approx(2 * step)


def test_copies_hide_behind_slow_kernels_and_not_behind_fast_ones():
    unstaged = seconds(runtime="wide")
    staging = ForwardTimer(LLADA, PHONE, SWAP).transfers.seconds
    assert unstaged < seconds() < unstaged + 0.1 * staging
    fast = seconds(kernels="vendor", runtime="wide")
    assert seconds(kernels="vendor") > fast + 0.5 * staging


def test_transfers_of_a_plan_replace_the_rule():
    plan = WeightTransfers((WeightTransfer("stage", 1.0, 1e9, feeds=31, after=30),))
    wide = ForwardTimer(LLADA, PHONE, System(runtime="wide"))
    unstaged = simulate(Workload((STEP,), 1, 1, "a test"), wide)
    planned = simulate(unstaged.workload, ForwardTimer(LLADA, PHONE, SWAP, transfers=plan))
    assert planned.seconds == pytest.approx(unstaged.seconds + 1.0, rel=0.01)
    assert planned.parts["staging (not hidden)"] == pytest.approx(1.0, rel=0.01)


def test_remapping_makes_the_npu_wait():
    mapping = ForwardTimer(LLADA, PHONE, System(runtime="remap")).transfers.seconds
    assert seconds(runtime="remap") == pytest.approx(seconds(runtime="wide") + mapping)


def test_a_small_revision_hides_behind_the_npu_and_a_large_one_does_not():
    few, many = (seconds(STEP._replace(refreshed=n, rescored=n)) for n in (1, 20))
    assert few == pytest.approx(seconds(), rel=0.02)
    assert many > 1.5 * few


def test_the_head_of_a_revision_has_one_row_per_rescored_token():
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


def test_a_body_on_the_cpu_stages_nothing():
    phone = ForwardTimer(LLADA, PHONE, System(body="cpu", runtime="none"))
    assert phone.transfers == WeightTransfers()
    with pytest.raises(ValueError, match="runtime is 'none'"):
        ForwardTimer(LLADA, PHONE, System(runtime="none"))


def test_without_head_rows_the_head_takes_no_time():
    without = ForwardTimer(LLADA, PHONE, SWAP).step(STEP._replace(head_rows=0))
    assert [e.end - e.start for e in without.events if e.task.name == "head"] == [0]


def head_event(scores_on: ScoresOn, forward=STEP):
    system = System(runtime="wide", scores_on=scores_on)
    phone = ForwardTimer(LLADA, PHONE, system)
    (event,) = [e for e in phone.step(forward).events if e.task.name == "head"]
    return event


def test_a_head_on_the_npu_consists_of_its_product_and_vector_work():
    task = head_event("npu").task
    assert task.lane == "npu" and task.seconds == pytest.approx(sum(task.parts.values()))
    assert task.parts["head"] > 0 and task.parts["scores"] > 0
    assert head_event("cpu").task.lane == "cpu"


def test_a_head_on_the_npu_is_staged_with_the_layers():
    def copied(runtime: Runtime, **settings) -> float:
        timer = ForwardTimer(LLADA, PHONE, System(runtime=runtime, **settings), 256)
        return sum(transfer.copied_bytes for transfer in timer.transfers.transfers)

    added = copied("swap", scores_on="npu") - copied("swap")
    model = LLADA.model
    assert added == pytest.approx(model.vocab_size * model.width * 4.5 / 8)
    assert copied("wide", scores_on="npu") == 0


def test_without_head_rows_the_npu_runs_no_head():
    system = System(runtime="wide", scores_on="npu")
    events = ForwardTimer(LLADA, PHONE, system).step(STEP._replace(head_rows=0)).events
    assert all(event.task.name != "head" for event in events)


def test_power_depends_on_the_busy_processors():
    tasks = [LaneTask("a", "npu", 2.0), LaneTask("b", "cpu", 1.0)]
    energy = energy_of(run(tasks, 50), PHONE.power)
    power = PHONE.power
    assert energy.joules == pytest.approx(power.both_w + power.npu_w)
    assert energy.above_idle == pytest.approx(energy.joules - 2 * power.idle_w)
    assert energy.watts == pytest.approx(energy.joules / 2)


def test_a_copying_core_adds_its_power():
    tasks = [LaneTask("a", "npu", 2.0), LaneTask("b", "staging", 3.0)]
    power = PHONE.power
    joules = energy_of(run(tasks, 50), power).joules
    assert joules == pytest.approx(2 * power.npu_w + power.idle_w + 3 * power.core_w)


def test_an_empty_run_takes_no_time_and_power():
    result = simulate(Workload((), 1, 1, "a test"), ForwardTimer(GRAPHS, PHONE, SWAP))
    assert (result.seconds, result.energy.watts) == (0, 0)


def test_doubts_of_unused_numbers_do_not_count():
    workload = blockwise(8, 32)
    timer = lambda profile: ForwardTimer(GRAPHS, profile, SWAP, workload.canvas)  # noqa: E731
    everything = RunTimer(PHONE, timer).uncertain(workload)
    used = RunTimer(PHONE, timer, SWAP.uses).uncertain(workload)
    assert used == everything and used.seconds == timer(PHONE).latency(workload)
    assert all("vendor" not in name and "hexkl" not in name for name, _ in used.largest)


def test_a_slow_session_lengthens_a_run_at_the_same_work():
    workload = blockwise(8, 32)
    timer = ForwardTimer(GRAPHS, PHONE, SWAP, workload.canvas)
    cool, slow = simulate(workload, timer), simulate(workload, timer, slowdown=2.5)
    assert slow.seconds == pytest.approx(2.5 * cool.seconds)
    assert sum(slow.parts.values()) == pytest.approx(slow.seconds)
    assert slow.parts["session"] == pytest.approx(1.5 * cool.seconds)
    assert slow.energy.above_idle == cool.energy.above_idle
    assert slow.energy.watts < cool.energy.watts


def test_attention_on_the_cpu_is_priced_by_its_kernels():
    kernels = replace(PHONE.npu["llada_cpp"], attention="cpu")
    step = LLADA.layer(32, 64)
    on_npu, on_cpu = (
        price_on_npu(step, library, PHONE.memory, PHONE.cpu["plain"])
        for library in (PHONE.npu["llada_cpp"], kernels)
    )
    assert on_npu.host == 0 < on_cpu.host and on_cpu.dma < on_npu.dma
    with pytest.raises(ValueError, match="attention is 'cpu' without kernels of a CPU"):
        price_on_npu(step, kernels, PHONE.memory)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"body": "gpu"}, "body is 'gpu'; allowed: 'npu', 'cpu'"),
        ({"runtime": "magic"}, "runtime is 'magic'; allowed: 'none', 'remap'"),
        ({"resident_mib": -1}, "resident_mib is -1; allowed: 0 or more"),
        ({"scores_on": "gpu"}, "scores_on is 'gpu'; allowed: 'cpu', 'npu'"),
        ({"body": "cpu", "scores_on": "npu"}, "scores_on is 'npu'; allowed: 'cpu', since the body"),
        ({"head": "best"}, "head is 'best'; allowed: 'plain', 'tuned'"),
    ],
)
def test_invalid_systems_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        System(**settings)


def test_kernels_that_the_phone_lacks_are_refused():
    with pytest.raises(ValueError, match="kernels is 'mine'; allowed: "):
        ForwardTimer(GRAPHS, PHONE, System(kernels="mine"))
