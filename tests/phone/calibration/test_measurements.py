"""A measured row has its state, or is refused."""

import csv
import json

import pytest

from llada_jax.phone.calibration.measurements import read_measurements

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
