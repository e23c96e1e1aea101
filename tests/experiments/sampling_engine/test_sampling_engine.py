"""The sampling-engine experiment runs, names its rows as documented, and refuses bad input."""

import json
from dataclasses import replace

import pytest
from hydra import compose, initialize_config_dir

from experiments.harness.run import REPOSITORY, Run, read_config
from experiments.sampling_engine.__main__ import (
    MODES,
    GpuBody,
    SamplingEngineConfig,
    bodies,
    latency_rows,
    sampling_engine,
    share_rows,
)
from experiments.sampling_engine.hardware import equivalents, hardware_rows, netlist
from llada_jax.sampling_engine.hdl.gates import gate_equivalents
from llada_jax.sampling_engine.sampler_program import compile_sampler
from llada_jax.sampling_engine.sampling import EngineConfig, Sampling

SMALL = [
    "batch=2", "rows=8", "vocab=300", "vlens=[32,64]", "hardware=false",
    "flips.batch=2", "flips.k=2", "flips.steps=2", "flips.formats=[float32,mx_e4m3]",
]  # fmt: skip


def composed(*overrides):
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        return compose("sampling_engine", [*overrides])


def test_it_runs(tmp_path):
    config = composed(*SMALL)
    sampling_engine(read_config(SamplingEngineConfig, config), Run(tmp_path, config))
    rows = {row["name"]: row for row in json.loads((tmp_path / "results.json").read_text())}
    for name in (
        "vlen64/latency_ms",
        "one_pass/vlen32/latency_ms",
    ):
        assert rows[name]["kind"] == "modelled" and rows[name]["value"] > 0
    for name in ("flips/float32", "flips/mx_e4m3/tiny"):
        assert rows[name]["kind"] == "measured"
    assert rows["flips/float32"]["value"] <= rows["flips/mx_e4m3"]["value"]
    assert "V_RED_MAX_IDX" in (tmp_path / "one_pass.asm").read_text()


def test_the_default_is_the_published_case_with_its_source():
    config = read_config(SamplingEngineConfig, composed())
    assert config == SamplingEngineConfig() and config.is_published_case
    programs = {
        (mode, vlen): compile_sampler(config.sampling(mode), EngineConfig(vlen=vlen))
        for mode in MODES
        for vlen in config.vlens
    }
    rows = {row.name: row for row in latency_rows(config, programs)}
    wanted = {512: 3.41, 1024: 1.79, 2048: 0.99}
    for vlen, ms in wanted.items():
        row = rows[f"vlen{vlen}/latency_ms"]
        assert row.reference == ms and abs(row.error) < 0.01
        assert row.kind == {512: "fitted", 1024: "modelled", 2048: "informed"}[vlen]
    assert rows["vlen2048/vector_cycles"].value == rows["vlen2048/vector_cycles"].reference
    assert rows["vlen2048/memory_cycles"].kind == "fitted"
    assert rows["vlen2048/vector_cycles"].kind == "informed"
    assert abs(rows["vlen2048/scalar_cycles"].error) < 0.01


def test_another_case_has_no_published_reference():
    config = replace(SamplingEngineConfig(), batch=1, vlens=(512,))
    sampling = Sampling(batch=1, rows=32, vocab=126464, mode="edge")
    program = compile_sampler(sampling, EngineConfig(vlen=512))
    rows = latency_rows(config, {(mode, 512): program for mode in MODES})
    assert all(row.reference is None for row in rows)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("vlens=[]", "vlens is empty; allowed: at least one vector length"),
        ("vlens=[100]", "vlen is 100; allowed: a power of two from 8 on"),
        ("rows=0", "rows is 0; allowed: 1 or more"),
        ("flips.formats=[fp8]", r"flips.formats\[0\] is 'fp8'; allowed: 'float32'"),
        ("flips.k=9", r"flips.k is 9; allowed: up to rows \(8\)"),
        ("vlens=[4]", "vlen is 4; allowed: a power of two from 8 on"),
        ("rows=40", r"rows is 40; allowed: up to vlen \(32\)"),
    ],
)
def test_bad_input(override, message, tmp_path):
    config = composed(*SMALL, override)
    with pytest.raises(ValueError, match=message):
        sampling_engine(read_config(SamplingEngineConfig, config), Run(tmp_path, config))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_areas_follow_from_gates_and_one_fitted_factor():
    rows = {row.name: row for row in hardware_rows()}
    areas = [rows[f"area/datapath/vlen{vlen}"] for vlen in (512, 1024, 2048)]
    assert [row.kind for row in areas] == ["fitted", "modelled", "modelled"]
    assert all(abs(row.error) < 0.01 for row in areas)
    assert rows["area/scalar"].kind == "informed" and abs(rows["area/scalar"].error) < 0.2
    deepest = max(row.value for name, row in rows.items() if name.endswith("/depth"))
    assert deepest <= 53


@pytest.mark.slow
def test_the_area_is_linear_in_the_number_of_lanes():
    units = ("max_index", "elements")
    cells = netlist(32).cells()
    counted = sum(gate_equivalents(cells[unit]) for unit in units)
    assert equivalents(32, units) == pytest.approx(counted, rel=0.01)


def test_a_body_is_bound_by_its_weights_or_its_rows():
    body = GpuBody(weights=2 * 10**9, vocab=1000)
    assert body.ms(1) == body.ms(2) == pytest.approx(2 * 2 / 768 * 1e3)
    assert body.ms(10**4) == pytest.approx(2 * 2e9 * 1e4 / 155e12 * 1e3)


def test_sizes_of_the_papers_models():
    weights = [body.weights / 1e9 for body in bodies().values()]
    assert weights == pytest.approx([7.5, 1.4], rel=0.05)  # without the embedding


def test_shares_are_per_step_and_70_percent_needs_a_slower_sampler():
    rows = {row.name: row.value for row in share_rows()}
    name = "gpu_share/llada_moe/unfused_float64"
    assert 0.2 < rows[f"{name}/peak"] < 0.3
    slower, peak = rows[f"{name}/slower_for_70_percent"], rows[f"{name}/peak"]
    assert slower * peak / (slower * peak + 1 - peak) == pytest.approx(0.7)
