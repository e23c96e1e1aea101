"""A measured row has its state, or is refused."""

import csv
import json
import struct

import pytest

from llada_jax.phones.calibration.measurements import Timing, read_measurements, read_timing

ROW = {
    "name": "a", "graph": "layers", "processor": "npu", "precision": "int4", "rows": "32",
    "cache": "256", "layers": "1", "weight": "", "median_ms": "2.0", "p5_ms": "1.9",
    "p95_ms": "2.2", "runs": "50", "thermal": "0", "version": "2.50", "held_out": "false",
}  # fmt: skip


def written(path, *rows):
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, ROW)
        table.writeheader()
        table.writerows(rows)
    return path


def test_a_csv_is_read_line_by_line(tmp_path):
    other = ROW | {"name": "b", "held_out": "true", "cache": ""}
    first, second = read_measurements(written(tmp_path / "phone.csv", ROW, other))
    assert first.rows == 32 and first.median_ms == 2.0 and not first.held_out
    assert second.held_out and second.cache == 0


def test_a_folder_takes_its_times_from_the_tools_results(tmp_path):
    bare = {key: "" if key.endswith("_ms") or key == "runs" else each for key, each in ROW.items()}
    written(tmp_path / "rows.csv", bare, bare | {"name": "b"})
    (tmp_path / "results").mkdir()
    latency = {"median_ms": 2.0, "p5_ms": 1.9, "p95_ms": 2.2, "num_runs": 50}
    (tmp_path / "results" / "b.json").write_text(json.dumps({"latency": latency}))
    (only,) = read_measurements(tmp_path)
    assert only.name == "b" and only.runs == 50


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"thermal": "2"}, "line 2: thermal of a is 2; allowed: 0"),
        ({"thermal": ""}, "line 2: thermal missing; allowed: name"),
        ({"version": ""}, "version missing"),
        ({"median_ms": "3"}, r"p5, median and p95 of a are \(1.9, 3.0, 2.2\); allowed: above 0"),
        ({"median_ms": "nan"}, "p5, median and p95 of a are"),
        ({"rows": "many"}, "rows is 'many'; allowed: a number"),
        ({"graph": "net"}, "graph of a is 'net'; allowed: 'layers', 'head', 'product'"),
        ({"precision": "int2"}, "precision of a is 'int2'; allowed: 'fp16'"),
        ({"weight": "ffn.down"}, "weight of a is 'ffn.down'; allowed: a matrix for products"),
        ({"held_out": "1"}, "held_out is '1'; allowed: 'true', 'false'"),
    ],
)
def test_rows_without_their_state_are_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        read_measurements(written(tmp_path / "phone.csv", ROW | change))


def test_files_without_rows_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no file .*phone.csv; allowed: a CSV file, or a folder"):
        read_measurements(tmp_path / "phone.csv")
    with pytest.raises(ValueError, match="has no row with times"):
        read_measurements(written(tmp_path / "phone.csv"))
    with pytest.raises(ValueError, match="names repeat"):
        read_measurements(written(tmp_path / "phone.csv", ROW, ROW))


QNN_HEADER = (
    "Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier"
)


def test_the_wheel_s_json_golden(tmp_path):
    path = tmp_path / "a.json"
    latency = {"median_ms": 2.0, "p5_ms": 1.5, "p95_ms": 3.0, "num_runs": 50, "avg_ms": 2.1}
    path.write_text(json.dumps({"signature": "rows1_cache256", "latency": latency}))
    assert read_timing(path) == Timing(2.0, 1.5, 3.0, 50)


def test_ai_hub_s_profile_golden(tmp_path):
    path = tmp_path / "a.json"
    times = {"all_inference_times": [1000, 2000, 3000], "estimated_inference_time": 1000}
    path.write_text(json.dumps({"execution_summary": times}))
    found = read_timing(path)
    assert found.median_ms == 2 and found.runs == 3 and found.p5_ms == pytest.approx(1.1)


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def real(number: int, value: float) -> bytes:
    return bytes([number << 3 | 5]) + struct.pack("<f", value)


def test_a_binary_protocol_buffer_golden(tmp_path):
    latency = real(1, 2.2) + real(5, 2.0) + real(6, 1.5) + real(7, 3.0)
    misc = real(1, 4.5) + bytes([2 << 3, 0xAC, 0x02])  # 300 runs
    path = tmp_path / "a.pb"
    path.write_bytes(field(1, b"name") + field(2, latency) + field(4, misc))
    assert read_timing(path) == Timing(2.0, 1.5, 3.0, 300)
    path.write_bytes(field(2, latency)[:-2])
    with pytest.raises(ValueError, match="cut short"):
        read_timing(path)
    path.write_bytes(field(2, latency) + b"\xff" * 2_000_000)  # one number of 14 million bits
    with pytest.raises(ValueError, match="at byte 22 has no end; allowed: up to 10 bytes"):
        read_timing(path)


def test_qnn_s_events_take_the_call_from_the_host(tmp_path):
    lines = [QNN_HEADER]
    for rpc in (900, 1000, 1100):
        lines += [
            f"UNKNOWN,BACKEND,{rpc},US,BACKEND,SUB-EVENT,RPC (execute) time",
            "UNKNOWN,BACKEND,700,US,BACKEND,SUB-EVENT,QNN accelerator (execute) time",
            "UNKNOWN,BACKEND,9999,CYCLES,BACKEND,SUB-EVENT,Accelerator (execute) time (cycles)",
        ]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines))
    found = read_timing(path)
    assert found.median_ms == 1 and found.runs == 3
    path.write_text(QNN_HEADER + "\n")
    with pytest.raises(ValueError, match="it has none of QNN"):
        read_timing(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.json", "{}"), ("a.json", "{"), ("a.json", "[]"), ("a.pb", "x"), ("a.csv", "a,b\n1,2\n")],
)
def test_damaged_files_are_refused(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError, match="a\\."):
        read_timing(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"ends in '.txt'; allowed: .json, .pb, .csv"):
        read_timing(tmp_path / "a.txt")
