"""Calibration exports and their timing script, which runs here against a replaced phone."""

import csv
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

import llada_jax as lj
from llada_jax.backend.exported import calibration_export
from llada_jax.backend.exported.calibration_export import ROWS, calibration_rows
from llada_jax.config import PhoneConfig
from llada_jax.model.architecture import architecture
from llada_jax.phones.calibration.measurements import read_measurements

ADB = """#!/bin/sh
case "$*" in
  *thermalservice*) printf 'IsStatusOverride: false\r\nThermal Status: {status}\r\n' ;;
  pull*) mkdir -p "$3/results"; cp $SAMPLE "$3/results/layers1-rows1_cache256.pb" ;;
  *benchmark_litert_model*) echo "$*" >> calls; case "$*" in *rows128*) exit 1 ;; esac ;;
esac
"""
SCRIPT = Path(calibration_export.__file__).with_name("calibration.sh")


def run_script(folder: Path, status: int) -> subprocess.CompletedProcess[str]:
    adb = folder / "bin" / "adb"
    adb.parent.mkdir()
    adb.write_text(ADB.replace("{status}", str(status)))
    adb.chmod(0o755)
    latency = b"".join(bytes([n << 3 | 5]) + b"\x00\x00\x80\x3f" for n in (5, 6, 7))  # 1.0 each
    (folder / "sample.pb").write_bytes(bytes([2 << 3 | 2, len(latency)]) + latency)
    calibration_export.write_rows(calibration_rows()[:6], folder / "calibration-rows.csv")
    shutil.copy(SCRIPT, folder)
    (folder / "signatures").touch()
    with tarfile.open(folder / "golden-head.tar", "w") as archive:
        archive.add(folder / "signatures", "signatures")
    paths = f"{adb.parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": paths, "SAMPLE": str(folder / "sample.pb")}
    command = ["sh", "calibration.sh", "SM8750", "2.50", "libraries"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_the_script_s_results_are_measurements(tmp_path):
    done = run_script(tmp_path, status=0)
    assert done.returncode == 0, done.stderr
    (found,) = read_measurements(tmp_path / "measured")  # the other graphs have no times here
    assert (found.name, found.median_ms, found.version) == ("layers1-rows1_cache256", 1.0, "2.50")
    calls = (tmp_path / "calls").read_text()
    for needed in ("ADSP_LIBRARY_PATH=", "LD_LIBRARY_PATH=", "htp_performance_mode=burst",
                   "--graph=calibration-SM8750-layers4.tflite"):  # fmt: skip
        assert needed in calls
    assert "no time of layers4-rows128_cache4096" in done.stderr
    with (tmp_path / "measured" / "rows.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 5


def test_a_hot_phone_is_reported(tmp_path):
    assert run_script(tmp_path, status=2).returncode == 0
    with pytest.raises(ValueError, match="thermal of layers1-rows1_cache256 is 2; allowed: 0"):
        read_measurements(tmp_path / "measured")


PHONE = """#!/bin/sh
echo "$*" >> calls
case "$*" in
  *thermalservice*) echo 'Thermal Status: 0' ;;
  pull*rows.csv*) cp rows.csv "$3" ;;
  pull*.pb*) cp sample.pb "$3$(basename "$2")" ;;
  pull*.csv*) cp sample.csv "$3$(basename "$2")" ;;
esac
"""
VIEWER = """#!/bin/sh
echo "$*" >> calls
cp sample.csv "$4"
"""
CONTEXT: dict = {
    "soc": "SM8750", "compiled": "context-SM8750-00.tflite", "precision": "int8",
    "start": 0, "stop": 2,
    "graphs": [
        {
            "signature": f"rows{rows}_cache64", "name": f"graph{rows}",
            "inputs": [{"name": "hidden", "shape": [rows, 2], "dtype": "float16"}],
        }
        for rows in (4, 8)
    ],
}  # fmt: skip
ROUTES = {
    "benchmark": [
        "--graph=context-SM8750-00.tflite --signature_to_run_for=rows8_cache64 --use_npu=true",
        "--graph=head.tflite --signature_to_run_for=rows4 --use_cpu=true",
        "push shard-00.tflite",
    ],
    "qnn": [
        "--retrieve_context context-SM8750-00.bin --input_list __,input_list.txt",
        "--use_native_input_files --use_native_output_files",
        "head -c 32 /dev/zero > zeros-32",
    ],
    "onnxruntime": ["context-SM8750-00-rows4_cache64.onnx", "htp_performance_mode|burst"],
}


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_times_signatures_by_name(route, tmp_path):
    settings = lj.ExportConfig(rows=(4, 8), caches=(64,))
    rows = [*calibration_export.signature_rows(settings, [("shard-00.tflite", 2)], [CONTEXT])]
    calibration_export.write_rows(rows, tmp_path / "signatures.csv")
    (tmp_path / "graphs.txt").write_text("".join(calibration_export.graph_lines([CONTEXT])))
    (tmp_path / "manifest.json").write_text(
        '{\n"ai-edge-litert": "2.3.0",\n"qnn_version": "2.50"\n}'
    )
    latency = b"".join(bytes([n << 3 | 5]) + b"\x00\x00\x80\x3f" for n in (5, 6, 7))
    (tmp_path / "sample.pb").write_bytes(bytes([2 << 3 | 2, len(latency)]) + latency)
    events = (
        "Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier"
    )
    (tmp_path / "sample.csv").write_text(f"{events}\n1,x,1000,US,BACKEND,ROOT,QNN (execute) time\n")
    for name, text in {"adb": PHONE, "qnn-profile-viewer": VIEWER}.items():
        tool = tmp_path / "bin" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(text)
        tool.chmod(0o755)
    paths = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    command = ["sh", SCRIPT.with_name("on_phone.sh"), route, "libraries", "SM8750"]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"PATH": paths}, check=True)
    found = read_measurements(tmp_path / "measured" / route)
    on_npu = [row for row in found if row.processor == "npu"]
    assert [(row.rows, row.cache, row.layers, row.precision) for row in on_npu] == [
        (4, 64, 2, "int8"), (8, 64, 2, "int8"),
    ]  # fmt: skip
    assert len(found) == (6 if route == "benchmark" else 2)
    assert {(row.median_ms, row.version) for row in found} == {
        (1.0, "2.3.0" if route == "benchmark" else "2.50")
    }
    calls = (tmp_path / "calls").read_text()
    for needed in (*ROUTES[route], "LD_LIBRARY_PATH=", "ADSP_LIBRARY_PATH="):
        assert needed in calls


def test_the_host_s_route_copies_its_table(tmp_path):
    (tmp_path / "manifest.json").write_text('{\n"ai-edge-litert": "2.3.0"\n}')
    columns = "name,graph,processor,precision,rows,median_ms,p5_ms,p95_ms,runs,thermal,version"
    (tmp_path / "rows.csv").write_text(f"{columns}\nhead,head,cpu,int8,8,1,1,1,3,0,2.3.0\n")
    adb = tmp_path / "bin" / "adb"
    adb.parent.mkdir()
    adb.write_text(PHONE)
    adb.chmod(0o755)
    paths = f"{adb.parent}:{os.environ['PATH']}"
    command = ["sh", SCRIPT.with_name("on_phone.sh"), "host", "libraries"]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"PATH": paths}, check=True)
    (found,) = read_measurements(tmp_path / "measured" / "host")
    assert (found.name, found.runs, found.version) == ("head", 3, "2.3.0")
    calls = (tmp_path / "calls").read_text()
    assert "./llada_host . --library ./libLiteRt.so --packed packed --csv" in calls
    assert "push manifest.json" in calls and "--thermal 0" in calls


def test_rows_straddle_tiles_and_caches():
    rows = calibration_rows()
    assert len({row["name"] for row in rows}) == len(rows) >= 30
    layers = [row for row in rows if row["graph"] == "layers"]
    assert {row["rows"] for row in layers} == set(ROWS)
    assert len({row["cache"] for row in layers}) == len({row["layers"] for row in layers}) == 2
    assert {row["precision"] for row in rows} == {"fp16", "int8", "int4"}


def test_every_row_has_its_graph():
    steps = calibration_export._steps(architecture("tiny"))
    for row in calibration_rows(head_rows=()):
        if row["cache" if row["graph"] == "layers" else "rows"] <= 128:
            assert row["signature"] in {step.name for step in steps[row["file"]]}


def test_an_export_without_emulator_files_is_refused(tmp_path, monkeypatch):
    settings = lj.ExportConfig(rows=(4,), caches=(32,))
    lj.export("tiny", tmp_path / "plain", settings, verify=False)
    with pytest.raises(ValueError, match="has no graphs that the emulator runs; allowed: an exp"):
        lj.generate(
            lj.load(tmp_path / "plain"), [[1, 2, 3]],
            lj.SamplerConfig.from_flat(gen_length=8, block_length=8, steps=8), backend="qnn",
        )  # fmt: skip


def test_a_calibration_names_its_phone():
    with pytest.raises(ValueError, match="calibration is True without socs; allowed: with the"):
        PhoneConfig(calibration=True)
