"""Measurement files are read, or refused with one sentence that names the mistake."""

import csv
import json
import struct

import pytest

from llada_jax.phones.calibration.measurements import (
    QNN_EVENTS,
    Timing,
    read_measurements,
    read_timing,
)

ROW = {
    "name": "a", "graph": "layers", "processor": "npu", "precision": "int4", "rows": "32",
    "cache": "256", "layers": "1", "weight": "", "median_ms": "2.0", "p5_ms": "1.9",
    "p95_ms": "2.2", "runs": "50", "thermal": "0", "version": "2.50", "held_out": "false",
}  # fmt: skip


def write_table(path, *rows):
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, ROW)
        table.writeheader()
        table.writerows(rows)
    return path


def test_a_csv_is_read_line_by_line(tmp_path):
    other = ROW | {"name": "b", "held_out": "true", "cache": ""}
    first, second = read_measurements(write_table(tmp_path / "phone.csv", ROW, other))
    assert first.rows == 32 and first.median_ms == 2.0 and not first.held_out
    assert second.held_out and second.cache == 0


def test_times_of_a_folder_come_from_the_tools_result_files(tmp_path):
    bare = ROW | dict.fromkeys(("median_ms", "p5_ms", "p95_ms", "runs"), "")
    write_table(tmp_path / "rows.csv", bare, bare | {"name": "b"})
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
        ({"rows": "many"}, "rows is 'many'; allowed: a whole number"),
        ({"rows": "1000000000"}, "rows is 1000000000; allowed: 1 to 1048576"),
        ({"cache": "-1"}, "cache is -1; allowed: 0 to 1048576"),
        ({"median_ms": "9" * 400}, "p5, median and p95 of a are"),
        ({"rows": "9" * 5000}, r"rows is '9{50,}; allowed: a whole number"),
        ({"median_ms": "2,0"}, "median_ms is '2,0'; allowed: a number, as 2.5"),
        ({"version": "x" * 200_000}, "line 2: field larger than field limit"),
        ({"graph": "net"}, "graph of a is 'net'; allowed: 'layers', 'head', 'product'"),
        ({"precision": "int2"}, "precision of a is 'int2'; allowed: 'fp16'"),
        ({"weight": "ffn.down"}, "weight of a is 'ffn.down'; allowed: a matrix for products"),
        ({"held_out": "1"}, "held_out is '1'; allowed: 'true', 'false'"),
    ],
)
def test_rows_with_invalid_fields_are_refused(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        read_measurements(write_table(tmp_path / "phone.csv", ROW | change))


def test_files_without_rows_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no file .*phone.csv; allowed: a CSV file, or a folder"):
        read_measurements(tmp_path / "phone.csv")
    with pytest.raises(ValueError, match="has no row with times"):
        read_measurements(write_table(tmp_path / "phone.csv"))
    with pytest.raises(ValueError, match="names repeat"):
        read_measurements(write_table(tmp_path / "phone.csv", ROW, ROW))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,medain_ms\na,2\n", "line 1: 'medain_ms' is not a column; .*did you mean median_ms?"),
        ("name;median_ms\na;2,0\n", "fields are separated by ';'; allowed: ','"),
        ("name,rows,rows\na,2,2\n", "line 1: rows repeats; allowed: each column once"),
        ("name,median_ms\na,2,0\n", "line 2: it has 3 fields; allowed: up to 2, .*decimal comma"),
        ("name,median_ms\n\nbö,2\n".encode("latin-1"), "line 3: 'utf-8' codec .*; allowed: UTF-8"),
        ("name,median_ms\na,2\n".encode("utf-16"), "line 1: 'utf-8' codec .*; allowed: UTF-8"),
    ],
)
def test_tables_in_other_formats_are_named(tmp_path, text, message):
    path = tmp_path / "phone.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=rf"phone\.csv, (line \d+: )?{message}"):
        read_measurements(path)


def test_a_byte_order_mark_is_skipped(tmp_path):
    path = write_table(tmp_path / "phone.csv", ROW)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_measurements(path)[0].name == "a"


def test_a_result_file_needs_the_exact_name_inside_the_folder(tmp_path):
    bare = ROW | dict.fromkeys(("median_ms", "p5_ms", "p95_ms", "runs"), "")
    (tmp_path / "results").mkdir()
    latency = {"median_ms": 2.0, "p5_ms": 1.9, "p95_ms": 2.2, "num_runs": 50}
    (tmp_path / "results" / "b.json").write_text(json.dumps({"latency": latency}))
    write_table(tmp_path / "rows.csv", bare | {"name": "*"}, bare | {"name": "b"})
    assert [row.name for row in read_measurements(tmp_path)] == ["b"]
    for name in ("/etc/passwd", "../results/b"):
        write_table(tmp_path / "rows.csv", bare | {"name": name})
        with pytest.raises(ValueError, match=rf"rows\.csv, line 2: '{name}' is named by a file"):
            read_measurements(tmp_path)


def test_columns_of_a_calibration_export_are_accepted(tmp_path):
    path = write_table(tmp_path / "phone.csv", ROW)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([f"{lines[0]},file,signature", f"{lines[1]},layers1,rows32"]))
    assert read_measurements(path)[0].rows == 32


QNN_HEADER = (
    "Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier"
)


def test_json_of_litert_s_wheel(tmp_path):
    path = tmp_path / "a.json"
    latency = {"median_ms": 2.0, "p5_ms": 1.5, "p95_ms": 3.0, "num_runs": 50, "avg_ms": 2.1}
    path.write_text(json.dumps({"signature": "rows1_cache256", "latency": latency}))
    assert read_timing(path) == Timing(2.0, 1.5, 3.0, 50)


def test_json_of_ai_hub(tmp_path):
    path = tmp_path / "a.json"
    times = {"all_inference_times": [1000, 2000, 3000], "estimated_inference_time": 1000}
    path.write_text(json.dumps({"execution_summary": times}))
    timing = read_timing(path)
    assert timing.median_ms == 2 and timing.runs == 3 and timing.p5_ms == pytest.approx(1.1)


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2, len(content)]) + content


def real(number: int, value: float) -> bytes:
    return bytes([number << 3 | 5]) + struct.pack("<f", value)


def test_protocol_buffer_of_litert(tmp_path):
    latency = real(1, 2.2) + real(5, 2.0) + real(6, 1.5) + real(7, 3.0)
    misc = real(1, 4.5) + bytes([2 << 3, 0xAC, 0x02])  # 300 runs
    path = tmp_path / "a.pb"
    path.write_bytes(field(1, b"name") + field(2, latency) + field(4, misc))
    assert read_timing(path) == Timing(2.0, 1.5, 3.0, 300)
    path.write_bytes(field(2, latency)[:-2])
    with pytest.raises(ValueError, match="cut short"):
        read_timing(path)
    path.write_bytes(field(2, latency) + b"\xff" * 2_000_000)  # one number of 14 million bits
    with pytest.raises(ValueError, match="a number has more than 10 bytes"):
        read_timing(path)


def test_the_host_s_call_is_preferred_in_qnn_events(tmp_path):
    lines = [QNN_HEADER]
    for rpc in (900, 1000, 1100):
        lines += [
            f"UNKNOWN,BACKEND,{rpc},US,BACKEND,SUB-EVENT,RPC (execute) time",
            "UNKNOWN,BACKEND,700,US,BACKEND,SUB-EVENT,QNN accelerator (execute) time",
            "UNKNOWN,BACKEND,9999,CYCLES,BACKEND,SUB-EVENT,Accelerator (execute) time (cycles)",
        ]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines))
    timing = read_timing(path)
    assert timing.median_ms == 1 and timing.runs == 3
    path.write_text(QNN_HEADER + "\n")
    with pytest.raises(ValueError, match="it has none of QNN"):
        read_timing(path)


LATENCY = '{"latency": {"median_ms": %s, "p5_ms": 1, "p95_ms": 3, "num_runs": %s}}'


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{}", "latency"),
        ("a.json", "{", "it is not JSON"),
        ("a.json", "[]", ""),
        ("a.json", "[" * 99_999, "it is not JSON"),
        ("a.json", LATENCY % (2, "Infinity"), "runs is inf; allowed: 1 or more"),
        ("a.json", LATENCY % ("9" * 400, 5), "median_ms is 9+.*; allowed: above 0, and finite"),
        ("a.json", LATENCY % ("[2]", 5), r"median_ms is \[2\]"),
        ("a.json", '{"execution_summary": {"all_inference_times": "12"}}', "times are '12'"),
        ("a.json", '{"execution_summary": {"all_inference_times": [NaN]}}', "median_ms is nan"),
        ("a.pb", "x", ""),
        ("a.pb", "\xff" * 999_999, "a number has more than 10 bytes"),
        ("a.csv", "a,b\n1,2\n", "Unit of Measurement"),
        ("a.csv", f"{QNN_HEADER}\n,,,US\n", "it has none of QNN"),
        ("a.csv", f"{QNN_HEADER}\n,,x,US,,,{QNN_EVENTS[0]}\n", "line 2: Time is 'x'; allowed"),
        ("a.csv", f"{QNN_HEADER}\n{'x' * 200_000}\n", "line 2: field larger than"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=rf"{name} is not a result of a known tool.*{message}"):
        read_timing(path)


def test_files_with_other_suffixes_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"ends in '.txt'; allowed: .json, .pb, .csv"):
        read_timing(tmp_path / "a.txt")
