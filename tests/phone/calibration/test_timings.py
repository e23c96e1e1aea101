"""Times are read from what the tools write; anything else is refused by its name."""

import json
import struct

import pytest

from llada_jax.phone.calibration.timings import Timing, read_timing

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
    with pytest.raises(ValueError, match="has none of QNN"):
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
