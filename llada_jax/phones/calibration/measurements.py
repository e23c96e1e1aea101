"""Reads the times of graphs that were measured on a phone.

A table has one row per graph: which graph, on which processor, how long it took. The times may also
be in the result files of benchmark tools, which `read_timing` reads:

.json   `ai_edge_litert.tools.benchmark_litert_model --result_json`, or an AI Hub profile job
.pb     the C++ `benchmark_litert_model --result_file_path`, a binary protocol buffer
.csv    ONNX Runtime's QNN provider with `profiling_level`, one event per line

All of these files come from other people's tools and spreadsheets. So every error is a ValueError
with the file, the line and the allowed values.
"""

import csv
import io
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

import numpy as np

from llada_jax.config import require, require_choice, require_counts, require_numbers
from llada_jax.config.checks import parse_json, shortened
from llada_jax.io import atomic
from llada_jax.io.inside import inside

_ROWS_FILE = "rows.csv"
RESULTS = "results"
Graph = Literal["layers", "head", "product"]
Precision = Literal["fp16", "int8", "int4"]
QNN_EVENTS = (
    *("QNN (execute) time", "RPC (execute) time"),
    *("QNN accelerator (execute) time", "Accelerator (execute) time"),
)
"""Events that time one run. The first one that the file contains is used: the time of the host's
call is preferred to the time on the accelerator."""
_PLAN_COLUMNS = ("file", "signature")
"""Columns of a calibration export that name the graph; a measurement does not need them."""
_MAX_BYTES, _MAX_COUNT, _MAX_MS = 1 << 26, 1 << 20, 1e7
# Anything that a damaged file can raise in the readers below.
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, struct.error)
# Field numbers in LiteRT's benchmark_result.proto: of BenchmarkResult, MiscMetrics, LatencyMetrics.
_LATENCY, _MISC = 2, 4
_RUNS = 2
_LATENCY_FLOATS = {5: "median_ms", 6: "p5_ms", 7: "p95_ms"}


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The measured time of one graph, in milliseconds from the host's call to its return."""

    name: str
    graph: Graph
    """Layers of the body, the whole head, or one product with a weight matrix."""
    processor: Literal["npu", "cpu"]
    precision: Precision
    """Number format of the stored weights."""
    rows: int
    cache: int = 0
    """Cached positions that the layers read."""
    layers: int = 1
    weight: str = ""
    """Matrix of a product, for example `ffn.down`; empty for other graphs."""
    median_ms: float
    p5_ms: float
    p95_ms: float
    runs: int
    thermal: int
    """Android's thermal status, 0 (none) to 6: the larger one of before and after the run."""
    version: str
    """Version of the runtime."""
    held_out: bool = False
    """Whether the row is predicted instead of fitted."""

    def __post_init__(self) -> None:
        require_choice(f"graph of {self.name}", self.graph, Graph)
        require_choice(f"processor of {self.name}", self.processor, Literal["npu", "cpu"])
        require_choice(f"precision of {self.name}", self.precision, Precision)
        times = (self.p5_ms, self.median_ms, self.p95_ms)
        require(
            0 < times[0] <= times[1] <= times[2] <= _MAX_MS,
            f"p5, median and p95 of {self.name} are {times}; allowed: above 0, ascending, up to "
            f"{_MAX_MS:g}",
        )
        require_counts(self, "rows", "layers", "runs", most=_MAX_COUNT)
        require_counts(self, "cache", least=0, most=_MAX_COUNT)
        require(
            self.thermal == 0,
            f"thermal of {self.name} is {self.thermal}; allowed: 0, since a hot phone is slower",
        )
        require(bool(self.version), f"version of {self.name} is empty; allowed: the runtime's")
        is_product = self.graph == "product"
        require(
            bool(self.weight) == is_product,
            f"weight of {self.name} is {self.weight!r}; allowed: a matrix for products alone",
        )


def read_measurements(path: str | PathLike[str]) -> list[Measurement]:
    """Reads a CSV file with one measurement per line, or the folder of a calibration export.

    In a folder, `rows.csv` is the table. If a row has no times there, they are read from the file
    of the folder `results` that has the row's name. Rows without times are left out. Text is UTF-8,
    with or without a byte order mark, and fields are separated by commas. Raises ValueError with
    the file, the line and the mistake.
    """
    path = Path(path)
    table = path / _ROWS_FILE if path.is_dir() else path
    require(table.is_file(), f"no file {table}; allowed: a CSV file, or a folder with {_ROWS_FILE}")
    try:
        rows = [*_rows(table, path / RESULTS if path.is_dir() else None)]
    except ValueError as error:
        raise ValueError(f"{table}, {error}") from error
    require(bool(rows), f"{table} has no row with times; allowed: at least one")
    names = [row.name for row in rows]
    require(len(set(names)) == len(names), f"names repeat in {table}; allowed: each once")
    return rows


def write_measurements(path: str | PathLike[str], rows: Iterable[Measurement]) -> None:
    """Writes a CSV file that `read_measurements` reads."""
    with atomic.new_file(Path(path)) as part, part.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [field.name for field in fields(Measurement)])
        table.writeheader()
        table.writerows(asdict(row) for row in rows)


def hold_out(measurements: Sequence[Measurement], every: int) -> list[Measurement]:
    """Returns the rows with every `every`-th one marked as held out. 0 changes no row."""
    return [
        replace(row, held_out=True) if every and index % every == every - 1 else row
        for index, row in enumerate(measurements)
    ]


def _rows(table: Path, results: Path | None) -> Iterator[Measurement]:
    """Yields the rows with times, which may be in the table or in the folder `results`."""
    known = [*(field.name for field in fields(Measurement)), *_PLAN_COLUMNS]
    for number, line in _csv_lines(table, known):
        try:
            values = {key: value for key, value in line.items() if key and value}
            if results is not None and "median_ms" not in values:
                values |= _times_from_tool(results, values.get("name", ""))
            if "median_ms" in values:
                yield _measurement(values)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error


def _csv_lines(
    path: Path, known: Sequence[str] | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the number and the fields of each line below the header; missing fields are empty.

    Raises ValueError, which begins with the line's number, if the file is not CSV in UTF-8. With
    `known` columns, also for any other column, and for a line with more fields than the header.
    """
    content = _content(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"line {line}: {error}; allowed: UTF-8 (save the table as UTF-8)"
        ) from error
    reader = csv.DictReader(io.StringIO(text, newline=""), restval="")
    try:
        columns = reader.fieldnames or ()
        if known is not None:
            _require_columns(columns, known)
        for line in reader:
            extra = line.pop(None, [])  # pyright: ignore[reportArgumentType]
            require(
                known is None or not extra,
                f"line {reader.line_num}: it has {len(columns) + len(extra)} fields; allowed: up "
                f"to {len(columns)}, as in the header (a decimal comma separates fields, too)",
            )
            yield reader.line_num, line
    except csv.Error as error:
        raise ValueError(f"line {reader.reader.line_num}: {error}; allowed: CSV") from error


def _require_columns(columns: Sequence[str], known: Sequence[str]) -> None:
    for name in filter(None, columns):  # spreadsheets leave columns without a name
        for separator in (";", "\t"):
            require(
                separator not in name,
                f"line 1: fields are separated by {separator!r}; allowed: ','",
            )
        close = get_close_matches(name, known, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        allowed = f"allowed: {', '.join(known)}{hint}"
        require(name in known, f"line 1: {name!r:.60} is not a column; {allowed}")
        require(columns.count(name) == 1, f"line 1: {name} repeats; allowed: each column once")


def _content(path: Path) -> bytes:
    size = path.stat().st_size
    require(size <= _MAX_BYTES, f"it has {size:,} bytes; allowed: up to {_MAX_BYTES:,}")
    return path.read_bytes()


def _times_from_tool(results: Path, name: str) -> dict[str, Any]:
    """Returns the times in the result file of a row, with any suffix; empty without such a file."""
    if not name:
        return {}
    inside(results, name)  # refuses names that are paths
    # Compared with each file's stem, as glob(name) would expand a name such as "*".
    files = sorted(path for path in results.glob("*") if path.stem == name)
    return read_timing(files[0])._asdict() if files else {}


def _measurement(line: Mapping[str, Any]) -> Measurement:
    hints = get_type_hints(Measurement)
    known = {field.name: field for field in fields(Measurement)}
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
        allowed = "a whole number" if kind is int else "a number, as 2.5"
        raise ValueError(f"{name} is {text!r:.60}; allowed: {allowed}") from None


class Timing(NamedTuple):
    """Time of one run in milliseconds: median and two percentiles of `runs` runs."""

    median_ms: float
    p5_ms: float
    p95_ms: float
    runs: int


def read_timing(path: Path) -> Timing:
    """Reads a benchmark tool's file. Raises ValueError if none of the known tools wrote it, and for
    times that are not finite and above 0."""
    readers = {".json": _read_json, ".pb": _read_protobuf, ".csv": _read_qnn_events}
    suffix = path.suffix
    require(suffix in readers, f"{path} ends in {suffix!r}; allowed: {', '.join(readers)}")
    try:
        timing = readers[suffix](path)
        require_numbers(timing, "median_ms", "p5_ms", "p95_ms", above=0)
        require_counts(timing, "runs")
    except _UNREADABLE as error:
        reason = error if isinstance(error, ValueError) else repr(error)
        reason = f"it has no field {error}" if isinstance(error, KeyError) else reason
        text = f"{path} is not a result of a known tool: {reason}"
        raise ValueError(shortened(text)) from error
    return timing


def _from_microseconds(times: Any) -> Timing:
    require(isinstance(times, list), f"times are {times!r:.60}; allowed: a list of microseconds")
    require(len(times) > 0, "there are no runs; allowed: at least one")
    p5, median, p95 = np.percentile(np.asarray(times, float) / 1e3, (5, 50, 95)).tolist()
    return Timing(median, p5, p95, len(times))


def _read_json(path: Path) -> Timing:
    record = parse_json(_content(path), "it is not JSON", "the file as the tool wrote it")
    if "execution_summary" in record:
        return _from_microseconds(record["execution_summary"]["all_inference_times"])
    latency = record["latency"]
    return Timing(*(latency[name] for name in ("median_ms", "p5_ms", "p95_ms", "num_runs")))


def _read_qnn_events(path: Path) -> Timing:
    times: dict[str, list[float]] = {event: [] for event in QNN_EVENTS}
    for number, line in _csv_lines(path):
        for event in QNN_EVENTS:
            if line["Unit of Measurement"] == "US" and line["Event Identifier"].startswith(event):
                times[event].append(_value(f"line {number}: Time", line["Time"], float))
    preferred = next(filter(None, times.values()), None)
    require(preferred is not None, f"it has none of {', '.join(QNN_EVENTS)} in US")
    return _from_microseconds(preferred)


def _read_protobuf(path: Path) -> Timing:
    result = dict(_protobuf_fields(_content(path)))
    latency = dict(_protobuf_fields(result[_LATENCY]))
    misc = dict(_protobuf_fields(result.get(_MISC, b"")))
    times = {name: struct.unpack("<f", latency[key])[0] for key, name in _LATENCY_FLOATS.items()}
    return Timing(**times, runs=misc.get(_RUNS, 1))


def _protobuf_fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yields the number and the value of each field: an int if it is a varint, else its bytes.

    Read here, since two fields do not justify the dependency on protobuf's generated code.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        require(key & 7 in (1, 2, 5), f"a field has the wire type {key & 7}; allowed: 0, 1, 2, 5")
        size, at = _varint(message, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
        require(at + size <= len(message), "the file is cut short")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Returns the variable-length integer at a position, and the position after it."""
    value = shift = 0
    while message[at] & 128:
        require(shift < 63, "a number has more than 10 bytes")
        value, shift, at = value | (message[at] & 127) << shift, shift + 7, at + 1
    return value | message[at] << shift, at + 1
