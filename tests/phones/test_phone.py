"""`lj.phone`: timed runs, tables, budgets and plans, and invalid arguments."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import llada_jax as lj
from llada_jax.config.timed_buckets import MODELLED
from llada_jax.phones.dynamics import Techniques
from llada_jax.phones.graphs import graphs_of
from llada_jax.phones.memory import max_rows
from llada_jax.phones.profile import PROFILES
from llada_jax.phones.published_tasks import PublishedTasks
from llada_jax.phones.simulate import ForwardTimer
from llada_jax.phones.system import System
from llada_jax.phones.workload import Forward, blockwise
from tests.phones.small import GRAPHS, SHAPE

RUN = blockwise(8, 32)
GRAPHS_8B = graphs_of("llada_8b")


@pytest.fixture(scope="module")
def phone() -> lj.Phone:
    return lj.phone("SM8750")


@pytest.fixture(scope="module")
def timed(phone):
    return phone.time(RUN, SHAPE)


def trace_of(model: dict) -> SimpleNamespace:
    """Returns a trace with one forward of one row, which commits four tokens."""
    one = np.array([[4]])
    return SimpleNamespace(
        rows=np.array([4]), live_rows=one, head_rows=one, cache_length=one, refreshed=0 * one,
        prompt_lengths=np.array([8]), filled=np.array([4]),
        settings={"model": model},
    )  # fmt: skip


def test_a_phone_is_loaded_by_name_or_path(tmp_path, phone):
    path = tmp_path / "my_phone.yaml"
    path.write_text((PROFILES / "SM8750.yaml").read_text().replace("soc: SM8750", "soc: mine"))
    mine = lj.phone(path)
    assert mine.profile.soc == "mine" and mine.profile.memory == phone.profile.memory
    assert lj.phone("sm8750").profile == phone.profile


def test_software_is_set_by_keywords():
    slow = lj.phone("SM8750", runtime="remap", cpu="tuned", quant="int8")
    assert slow.system == System(runtime="remap", cpu="tuned") and slow.quant == "int8"
    assert "SM8750" in repr(slow) and "runtime='remap'" in repr(slow)
    assert "\n" not in repr(slow)


def test_a_run_has_time_interval_energy_and_memory(timed):
    low, high = timed.interval
    assert 0 < low < timed.seconds < high
    assert sum(timed.breakdown.values()) == pytest.approx(timed.seconds)
    assert list(timed.breakdown.values()) == sorted(timed.breakdown.values(), reverse=True)
    assert timed.doubts[0][1] == max(seconds for _, seconds in timed.doubts)
    assert timed.energy.joules > timed.energy.above_idle > 0
    assert timed.tokens_per_second == pytest.approx(32 / timed.seconds)
    assert timed.footprint.fits and timed.plan is None
    assert timed.source == RUN.source and timed.workload is RUN


def test_the_interval_includes_other_buffer_sizes(phone):
    """With buffers a fifth larger, copies no longer hide: the latency jumps."""
    run = PublishedTasks(GRAPHS_8B, 1).workloads("GSM8K", 128, Techniques())[0]
    usual, size = phone.time(run, "llada_8b"), phone.profile.memory.buffer_mib
    larger, smaller = (
        replace(phone, profile=phone.profile.with_values({"memory.buffer_mib": factor * size}))
        .time(run, "llada_8b")
        .seconds
        for factor in (1.2, 0.8)
    )
    low, high = usual.interval
    assert 1.15 * usual.seconds < larger < high
    assert low < smaller < high


def test_a_run_takes_the_time_of_its_forwards(phone, timed):
    timer = ForwardTimer(GRAPHS, phone.profile, phone.system, RUN.canvas)
    assert timed.seconds == pytest.approx(timer.latency(RUN))
    assert phone.timer(SHAPE, RUN.canvas).latency(RUN) == pytest.approx(timed.seconds)


def test_the_repr_of_a_run_is_one_line_with_modelled(timed):
    shown = repr(timed)
    assert "\n" not in shown and len(shown) < 300
    for part in (f"{timed.seconds:.2f} s", "modelled", "SM8750", "one token a forward", "MiB"):
        assert part in shown


def test_a_trace_of_another_model_is_mentioned_in_the_source(phone):
    fields = {name: getattr(SHAPE, name) for name in SHAPE.__dataclass_fields__}
    other = phone.time(trace_of(fields | {"width": 32}), SHAPE)
    same = phone.time(trace_of(fields), SHAPE)
    assert other.source.endswith("width 32, run as if by this model")
    assert same.source.endswith("width 64") and same.seconds == other.seconds


def test_a_run_can_stage_by_the_plan_of_a_planner(phone):
    cramped = replace(phone, profile=phone.profile.with_values({"memory.mapping_cap_mib": 0.12}))
    planned = cramped.time(RUN, SHAPE, planner="steady")
    assert planned.plan is not None and planned.plan.transfers > 0
    assert sum(planned.breakdown.values()) == pytest.approx(planned.seconds)
    timer = cramped.timer(SHAPE, RUN.canvas, planned.plan)
    assert timer.latency(RUN) == pytest.approx(planned.seconds)


def test_latency_table_and_row_budget_are_settings_of_a_sampler(phone):
    table = phone.latency_table(SHAPE, [4, 8], canvas=64)
    assert table.rows == (4, 8)
    steps = [phone.timer(SHAPE, 64).step(Forward(n, 64, n)) for n in table.rows]
    assert table.ms == tuple(1e3 * step.seconds for step in steps)
    budget = phone.row_budget(SHAPE, canvas=64)
    settings = {"gen_length": 8, "block_length": 4, "steps": 8}
    config = lj.SamplerConfig.preset(
        "llada_cpp", latency_table=table, row_budget=budget, **settings
    )
    assert config.latency_table == table and config.window.row_budget == budget


@pytest.mark.parametrize("soc", MODELLED)
def test_named_latency_tables_equal_those_of_the_phones(soc):
    named, modelled = lj.LatencyTable.named(soc), lj.phone(soc).latency_table("llada_8b")
    assert named.rows == modelled.rows and named.ms == pytest.approx(modelled.ms, abs=0.05)


def test_a_plan_has_resident_weights_and_transfers(phone):
    small = {"memory.mapping_cap_mib": 0.12}
    cramped = replace(phone, profile=phone.profile.with_values(small))
    plan = cramped.plan(SHAPE, rows=8, canvas=64)
    assert plan.resident_bytes < plan.graph.weight_bytes and plan.transfers > 0
    assert "modelled" in repr(plan) and "'steady' on SM8750" in repr(plan)
    assert "\n" not in repr(plan)
    published = cramped.plan(SHAPE, "greedy", rows=8, canvas=64)
    assert published.stall_seconds >= plan.stall_seconds
    roomy = phone.plan(SHAPE, rows=8, canvas=64)
    assert roomy.transfers == 0 and roomy.stall_seconds == 0


def test_shapes_are_names_paths_or_configurations(tmp_path, phone):
    path = tmp_path / "mine.yaml"
    fields = {name: getattr(SHAPE, name) for name in SHAPE.__dataclass_fields__}
    lines = [
        f"{name}: {value}\n" for name, value in fields.items() if value not in (None, False, ())
    ]
    path.write_text("".join(lines).replace("1e-05", "1.0e-05"))  # YAML reads 1e-05 as text
    tables = [phone.latency_table(shape, [4], canvas=64) for shape in (path, str(path), SHAPE)]
    assert tables[0] == tables[1] == tables[2]
    assert phone.time(RUN, path).shape == "mine"
    assert phone.latency_table("tiny", [4], canvas=64).ms[0] > 0


def test_a_row_budget_depends_on_the_resident_weights(phone):
    def budget(**software) -> int | None:
        return lj.phone("SM8750", **software).row_budget("llada_8b")

    resident = phone.timer("llada_8b").transfers.resident_mib
    assert resident == 3744 - 672
    limit = max_rows(
        phone.system, GRAPHS_8B.model, phone.profile.memory, canvas=256, resident=resident
    )
    assert budget() == limit > 32
    assert (budget(resident_mib=1024) or 0) > limit
    assert budget(body="cpu") is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda phone: lj.phone("SM1"), "phone is 'SM1'; allowed: SM8550, SM8650, SM8750"),
        (
            lambda phone: lj.phone("SM8750", bodies=1),
            "bodies is not a setting of a phone; allowed: b",
        ),
        (lambda phone: lj.phone("SM8750", kernels="x"), "kernels is 'x'; allowed: "),
        (lambda phone: lj.phone("SM8750", quant="int3"), "quant is 'int3'; allowed: 'float32'"),
        (lambda phone: phone.time(None, SHAPE), "run is NoneType; allowed: the trace of"),
        (lambda phone: phone.time(RUN, "gpt"), "shape is 'gpt'; allowed: dream_7b, llada2_flash"),
        (lambda phone: phone.time(trace_of({}), SHAPE, row=1), "row is 1; allowed: 0 to 0"),
        (lambda phone: phone.time(RUN, SHAPE, planner="x"), "planner is 'x'; allowed: 'greedy'"),
        (lambda phone: phone.plan(SHAPE, "best"), "planner is 'best'; allowed: 'greedy'"),
        (lambda phone: phone.plan(SHAPE, rows=0), r"rows is 0; allowed: 1 to canvas \(256\)"),
        (lambda phone: phone.latency_table(SHAPE, [8, 4]), r"rows is \[8, 4\]; allowed: ascending"),
        (lambda phone: phone.latency_table(SHAPE, [512]), r"rows is \[512\]; allowed: up to"),
    ],
)
def test_invalid_arguments_are_refused(phone, call, message):
    with pytest.raises(ValueError, match=message):
        call(phone)
