"""The benchmark runs, compares each timing with its baseline, and refuses bad input."""

import json
from typing import cast

import pytest
from hydra import compose, initialize_config_dir

import llada_jax as lj
from experiments.bench.__main__ import BenchConfig, bench, timed_rows
from experiments.bench.gpu_bench import (
    GpuBenchConfig,
    time_attention,
    time_decoding,
    time_forwards,
)
from experiments.bench.growth_bench import GrowthBenchConfig, time_growth
from experiments.bench.hot_paths import random_model
from experiments.bench.start_bench import time_loading
from experiments.bench.training_bench import TrainingBenchConfig, time_training
from experiments.harness.run import REPOSITORY, Run, read_config
from llada_jax.checkpoint import fingerprint
from llada_jax.config import ModelConfig

SIZES = {
    "vocab_size": 64, "width": 16, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2, "head_dim": 8,
    "ffn_width": 32, "rope_theta": 1e4, "norm_eps": 1e-5, "max_length": 64, "mask_id": 63,
}  # fmt: skip
SHAPE = ModelConfig(family="llada", **SIZES)
SMALL = [
    "+architecture.family=llada",
    *(f"+architecture.{name}={value}" for name, value in SIZES.items()),
    "start.prompt_length=8", "start.gen_length=8", "start.block_length=4", "repeats=1",
]  # fmt: skip


def composed(*overrides):
    with initialize_config_dir(str(REPOSITORY / "conf"), version_base="1.3"):
        return compose("bench", [*overrides])


@pytest.mark.slow
def test_packed_canvases_are_compared_with_single_ones(tmp_path):
    pytest.importorskip("litert_converter")
    small = [override.replace("+", "++") for override in SMALL]  # over the suite's architecture
    special = [f"++architecture.{name}_id=null" for name in ("eos", "eot", "pad")]
    config = composed(*small, *special, "suite=packed", "repeats=2", "packed.layers=1",
                      "packed.canvases=2", "packed.block_lengths=[4]",
                      "packed.gen_length=8")  # fmt: skip
    bench(read_config(BenchConfig, config), Run(tmp_path, config))
    rows = {row["name"]: row for row in json.loads((tmp_path / "results.json").read_text())}
    for runtime in ("litert", "xla"):
        assert rows[f"packed/{runtime}/block4/ratio"]["value"] > 0
        assert rows[f"packed/{runtime}/block4/ratio"]["kind"] == "measured"
        assert rows[f"packed/{runtime}/block4/same_tokens"]["value"] == 1


def test_products_are_compared_with_litert(tmp_path):
    pytest.importorskip("litert_converter")
    pytest.importorskip("llvmlite")
    config = composed("suite=products", "repeats=2", "products.shapes=[[64,64]]",
                      "products.rows=[3]", "products.bytes=8192")  # fmt: skip
    bench(read_config(BenchConfig, config), Run(tmp_path, config))
    rows = {row["name"]: row for row in json.loads((tmp_path / "results.json").read_text())}
    assert rows["products/64x64/rows3/ratio"]["value"] > 0


def test_the_suite_for_gpus_wants_one():
    config = read_config(BenchConfig, composed("suite=gpu"))
    with pytest.raises(ValueError, match="JAX's platform is cpu; allowed: gpu"):
        next(timed_rows(config, cast(Run, None)))


@pytest.mark.slow
def test_the_functions_of_the_suite_for_gpus_run_on_a_cpu():
    config = GpuBenchConfig(
        batches=(1, 2), contexts=(96,), decoded=((1, 96),), prompts=2, torch=False
    )
    shape = SHAPE.replace(max_length=128, vocab_size=300, mask_id=299)
    rows = [*time_attention(shape, config, 2), *time_forwards(shape, config, 2, 1e9)]
    rows += time_decoding(shape, config, 2, "")
    measured = {row.name for row in rows if row.value > 0}
    assert {
        "attention/1x96 over 0/blocks", "forward/2x96/llada_jax", "decode/1x96/host",
        "mixed lengths",
    } <= measured  # fmt: skip


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("packed.block_lengths=[5]", r"packed: block_lengths has 5; allowed: divisors of gen"),
        ("continuous.turns=1", "continuous: turns is 1; allowed: 2 or more"),
        ("continuous.places=[0]", r"continuous: places is \[0\]; allowed: numbers from 1 on"),
        ("repeats=0", "repeats is 0; allowed: 1 or more"),
        ("start.block_length=3", "start: gen_length is 8; allowed: a multiple of block_length"),
        ("start.prompt_length=0", "start: prompt_length is 0; allowed: 1 or more"),
        ("start.opening_layers=0", "start: opening_layers is 0; allowed: 1 or more"),
    ],
)
def test_bad_input(override, message, tmp_path):
    config = composed(*SMALL, override)
    with pytest.raises(ValueError, match=message):
        bench(read_config(BenchConfig, config), Run(tmp_path, config))
    assert not list(tmp_path.iterdir())


def test_a_suite_chooses_its_model():
    assert composed().suite == "continuous" and composed().model == "small"
    assert composed("suite=start", "model=tiny").model == "tiny"


def test_medium_is_a_model():
    config = read_config(BenchConfig, composed("architecture=medium"))
    assert config.architecture is not None and config.architecture.vocab_size == 126464


def test_results_name_the_model_that_was_loaded(random_model, tmp_path):
    small = [override.replace("+", "++") for override in SMALL]  # over the suite's architecture
    special = [f"++architecture.{name}_id=null" for name in ("eos", "eot", "pad")]
    shape = [*small, *special, "suite=constraint"]
    for chosen, name in (([f"model={random_model}"], fingerprint(random_model)), (shape, None)):
        config = composed(*chosen)
        run = Run(tmp_path, config)
        timed_rows(read_config(BenchConfig, config), run)  # without timing a row
        assert run.fingerprint == name


@pytest.mark.slow
def test_a_stream_is_compared_with_batches(random_model, tmp_path):
    told = ["items=6", "batch=3", "places=[2]", "turns=2", "samplers=[threshold]"]
    told = [f"continuous.{each}" for each in told]
    config = composed("suite=continuous", f"model={random_model}", *told)
    timed = timed_rows(read_config(BenchConfig, config), Run(tmp_path, config))
    rows = {row.name: row.value for row in timed}
    assert rows["continuous/threshold/places_2/same_answers"] == 1
    for way in ("batches", "places_2"):
        assert 0 < rows[f"continuous/threshold/{way}/useful"] <= 1
    assert rows["continuous/threshold/places_2/processor"] > 0
    assert len(rows) == 2 + 9


def test_loading_is_timed_with_and_without_the_check():
    rows = {row.name: row.value for row in time_loading(lj.load("tiny"), 2)}
    for when in ("first", "again"):
        assert rows[f"loading/{when}/checked"] > 0
        assert rows[f"loading/{when}/checked vs unchecked"] > 0


@pytest.mark.parametrize("suite", ["hot_paths", "rivals", "packed", "products", "loading"])
def test_a_single_time_has_no_quartiles(suite) -> None:
    with pytest.raises(ValueError, match="repeats is 1; allowed: 2 or more"):
        BenchConfig(suite=suite, repeats=1)


@pytest.mark.slow
def test_programs_do_not_grow_with_depth_and_processes_start_faster_again(tmp_path):
    small = [override.replace("+", "++") for override in SMALL]  # over the suite's architecture
    special = [f"++architecture.{name}_id=null" for name in ("eos", "eot", "pad")]
    config = composed(*small, *special, "++architecture.n_layers=8", "suite=start", "model=tiny",
                      f"start.scratch={tmp_path / 'opening'}")  # fmt: skip
    timed = timed_rows(read_config(BenchConfig, config), Run(tmp_path, config))
    rows = {row.name: row.value for row in timed}
    for window in ("dual", "blockwise", "llada_cpp"):
        assert 1 < rows[f"start/{window}/lines_by_depth"] < 1.2
        assert rows[f"start/{window}/compile_by_depth"] > 0
    assert rows["start/generate/again vs first"] > 1
    known, larger, first = (
        rows[f"start/constraint/{size}"] for size in ("same size", "larger", "first")
    )
    assert known < larger < first
    assert 0 < rows["start/opening/again"] <= rows["start/opening/first"]
    assert list((tmp_path / "opening").iterdir()) == []


@pytest.mark.slow
def test_a_budget_of_experts_is_compared_with_all_in_memory(tmp_path):
    told = ["dtypes=[int4]", "shares=[0.25]", "policies=[hybrimoe]", f"scratch={tmp_path}"]
    shape = ["width=64", "n_layers=2", "n_heads=2", "n_kv_heads=2", "head_dim=32", "vocab_size=512"]
    moe = ["n_experts=8", "experts_per_token=2", "expert_width=32"]
    config = composed(
        "suite=experts_budget",
        *(f"experts_budget.{each}" for each in told),
        *(f"architecture.{each}" for each in [*shape, "mask_id=511", "eos_id=510"]),
        *(f"architecture.moe.{each}" for each in moe),
    )
    timed = timed_rows(read_config(BenchConfig, config), Run(tmp_path, config))
    rows = {row.name.removeprefix("experts_budget/int4/"): row.value for row in timed}
    assert rows["25/hybrimoe/equal_tokens"] == 1
    assert 0 < rows["25/hybrimoe/hit_rate"] < 1 and rows["25/hybrimoe/read"] > 0
    assert rows["25/hybrimoe/weights"] < rows["memory/weights"]
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.slow
def test_training_steps_are_timed_with_and_without_the_loop():
    config = TrainingBenchConfig(batch_size=2, length=64, steps=1, loop_steps=2)
    rows = {row.name: row for row in time_training(SHAPE, config, repeats=2)}
    for name in ("float32/ours", "bfloat16/ours", "loop vs step"):
        assert rows[f"training/{name}"].value > 0


@pytest.mark.slow
def test_growth_is_timed_without_pytorch(capsys):
    config = GrowthBenchConfig(canvases=(32, 64), cached=(32, 64))
    model = random_model(SHAPE, 0)
    rows = {row.name: row for row in time_growth(model, config, repeats=2)}
    for name in ("step/compiled", "step/host", "first/64", "first/64/temporary", "cached/32"):
        assert rows[f"growth/{name}"].value > 0
    assert "left out: torch: growth.torch_python is null" in capsys.readouterr().err
    assert not any(name.startswith("growth/batch") for name in rows)  # no tokenizer
