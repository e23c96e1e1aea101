"""What was measured on a phone, row by row; times are as the tools that time graphs write them.

.json   `ai_edge_litert.tools.benchmark_litert_model --result_json`, or an AI Hub profile job
.pb     the C++ `benchmark_litert_model --result_file_path`: a binary protocol buffer
.csv    ONNX Runtime's QNN provider with `profiling_level`, an event a line
"""

import csv
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

import numpy as np

from llada_jax.config import require, require_choice, require_counts
from llada_jax.io import atomic
from llada_jax.io.inside import inside

ROWS_FILE = "rows.csv"
RESULTS = "results"
Graph = Literal["layers", "head", "product"]
Precision = Literal["fp16", "int8", "int4"]
QNN_EVENTS = (
    *("QNN (execute) time", "RPC (execute) time"),
    *("QNN accelerator (execute) time", "Accelerator (execute) time"),
)
"""Of a run, in microseconds: the first that the file has is taken, the call from the host best."""
_LATENCY, _MISC = 2, 4
_RUNS = 2
_MAX_VARINT_BYTES = 10  # 64 bits, 7 in a byte
_FLOATS = {5: "median_ms", 6: "p5_ms", 7: "p95_ms"}
"""Fields of BenchmarkResult, of its MiscMetrics and of its LatencyMetrics, by number."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One graph as it was timed. Milliseconds are of a run from the host's call to its answer."""

    name: str
    graph: Graph
    """Layers of the body, the whole head, or a single product with weights."""
    processor: Literal["npu", "cpu"]
    precision: Precision
    """How weights are stored."""
    rows: int
    cache: int = 0
    """Cached positions that layers read."""
    layers: int = 1
    weight: str = ""
    """Of a product: its matrix in a layer, as `ffn.down`."""
    median_ms: float
    p5_ms: float
    p95_ms: float
    runs: int
    thermal: int
    """Android's thermal status, 0 (none) to 6, the worse of before and after."""
    version: str
    """Of the runtime that ran it."""
    held_out: bool = False
    """Whether it is kept from the fit, and predicted."""

    def __post_init__(self) -> None:
        require_choice(f"graph of {self.name}", self.graph, Graph)
        require_choice(f"processor of {self.name}", self.processor, Literal["npu", "cpu"])
        require_choice(f"precision of {self.name}", self.precision, Precision)
        times = (self.p5_ms, self.median_ms, self.p95_ms)
        require(
            all(isfinite(each) for each in times) and 0 < times[0] <= times[1] <= times[2],
            f"p5, median and p95 of {self.name} are {times}; allowed: above 0, ascending",
        )
        require_counts(self, "rows", "layers", "runs")
        require_counts(self, "cache", least=0)
        require(
            self.thermal == 0,
            f"thermal of {self.name} is {self.thermal}; allowed: 0, as a hot phone is another one",
        )
        require(bool(self.version), f"version of {self.name} is empty; allowed: the runtime's")
        is_product = self.graph == "product"
        require(
            bool(self.weight) == is_product,
            f"weight of {self.name} is {self.weight!r}; allowed: a matrix for products alone",
        )


def read_measurements(path: str | PathLike[str]) -> list[Measurement]:
    """Reads a CSV file with a line for each row, or the folder of a calibration export.

    In a folder, `rows.csv` has the lines, and a file of `results` with a row's name, as a tool
    wrote it, the times of those that have none. Rows without times are left out. Raises ValueError
    that names the file, the line and what is wrong.
    """
    path = Path(path)
    table = path / ROWS_FILE if path.is_dir() else path
    require(table.is_file(), f"no file {table}; allowed: a CSV file, or a folder with {ROWS_FILE}")
    found = []
    with table.open(newline="", encoding="utf-8") as file:
        for number, line in enumerate(csv.DictReader(file), start=2):
            values = {key: value for key, value in line.items() if key and value}
            try:
                if path.is_dir() and "median_ms" not in values:
                    values |= _timed(path, values.get("name", ""))
                if "median_ms" in values:
                    found.append(_measurement(values))
            except ValueError as error:
                raise ValueError(f"{table}, line {number}: {error}") from error
    require(bool(found), f"{table} has no row with times; allowed: at least one")
    names = [each.name for each in found]
    require(len(set(names)) == len(names), f"names repeat in {table}; allowed: each once")
    return found


def write_measurements(path: str | PathLike[str], rows: Iterable[Measurement]) -> None:
    """Writes a CSV file that `read_measurements` reads."""
    with atomic.new_file(Path(path)) as part, part.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [each.name for each in fields(Measurement)])
        table.writeheader()
        table.writerows(asdict(row) for row in rows)


def hold_out(measurements: Sequence[Measurement], every: int) -> list[Measurement]:
    """Returns the rows with each `every`-th one kept from the fit; 0: none but those that are."""
    return [
        replace(row, held_out=True) if every and index % every == every - 1 else row
        for index, row in enumerate(measurements)
    ]


def _timed(folder: Path, name: str) -> dict[str, Any]:
    files = sorted((folder / RESULTS).glob(f"{name}.*")) if name else []
    return read_timing(inside(folder, f"{RESULTS}/{files[0].name}"))._asdict() if files else {}


def _measurement(line: Mapping[str, Any]) -> Measurement:
    hints = get_type_hints(Measurement)
    known = {each.name: each for each in fields(Measurement)}
    missing = [n for n, f in known.items() if n not in line and f.default is MISSING]
    require(not missing, f"{', '.join(missing)} missing; allowed: {', '.join(known)}")
    return Measurement(**{n: _value(n, line[n], hints[n]) for n in known.keys() & line.keys()})


def _value(name: str, text: Any, kind: Any) -> Any:
    if kind is bool:
        require_choice(name, str(text).lower(), Literal["true", "false"])
        return str(text).lower() == "true"
    if kind not in (int, float):
        return text
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name} is {text!r}; allowed: a number") from None


class Timing(NamedTuple):
    """Milliseconds of so many runs."""

    median_ms: float
    p5_ms: float
    p95_ms: float
    runs: int


def read_timing(path: Path) -> Timing:
    """Reads a tool's file. Raises ValueError for one that none of the known tools wrote."""
    readers = {".json": _of_json, ".pb": _of_protobuf, ".csv": _of_qnn_events}
    end = path.suffix
    require(end in readers, f"{path} ends in {end!r}; allowed: {', '.join(readers)}")
    try:
        return readers[end](path)
    except (KeyError, TypeError, IndexError, ValueError, struct.error) as error:
        raise ValueError(f"{path} is no result of a tool that is known: {error!r}") from error


def _of_microseconds(times: Sequence[float]) -> Timing:
    require(len(times) > 0, "there are no runs; allowed: at least one")
    p5, median, p95 = np.percentile(np.asarray(times, float) / 1e3, (5, 50, 95)).tolist()
    return Timing(median, p5, p95, len(times))


def _of_json(path: Path) -> Timing:
    record = json.loads(path.read_text(encoding="utf-8"))
    if "execution_summary" in record:
        return _of_microseconds(record["execution_summary"]["all_inference_times"])
    latency = record["latency"]
    times = (float(latency[name]) for name in ("median_ms", "p5_ms", "p95_ms"))
    return Timing(*times, runs=int(latency["num_runs"]))


def _of_qnn_events(path: Path) -> Timing:
    with path.open(newline="", encoding="utf-8") as file:
        lines = [line for line in csv.DictReader(file) if line["Unit of Measurement"] == "US"]
    for event in QNN_EVENTS:
        mine = (each for each in lines if each["Event Identifier"].startswith(event))
        times = [float(each["Time"]) for each in mine]
        if times:
            return _of_microseconds(times)
    raise ValueError(f"it has none of {', '.join(QNN_EVENTS)} in US")


def _of_protobuf(path: Path) -> Timing:
    parts = dict(_fields(path.read_bytes()))
    latency, misc = dict(_fields(parts[_LATENCY])), dict(_fields(parts.get(_MISC, b"")))
    times = {name: struct.unpack("<f", latency[field])[0] for field, name in _FLOATS.items()}
    return Timing(**times, runs=misc.get(_RUNS, 1))


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields numbers and contents of a protocol buffer's fields: varints as numbers, else bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        size, at = _varint(message, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
        require(at + size <= len(message), "the file is cut short")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(message[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, at + i + 1
    raise ValueError(
        f"the number at byte {at} has no end; allowed: up to {_MAX_VARINT_BYTES} bytes, the last "
        "below 128"
    )
