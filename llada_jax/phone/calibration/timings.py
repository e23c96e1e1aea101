"""Times of one graph, as the tools that time graphs write them.

.json   `ai_edge_litert.tools.benchmark_litert_model --result_json`, or an AI Hub profile job
.pb     the C++ `benchmark_litert_model --result_file_path`: a binary protocol buffer
.csv    ONNX Runtime's QNN provider with `profiling_level`, an event a line
"""

import csv
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llada_jax.config import require

QNN_EVENTS = (
    *("QNN (execute) time", "RPC (execute) time"),
    *("QNN accelerator (execute) time", "Accelerator (execute) time"),
)
"""Of a run, in microseconds: the first that the file has is taken, the call from the host best."""
_LATENCY, _MISC = 2, 4
_RUNS = 2
_FLOATS = {5: "median_ms", 6: "p5_ms", 7: "p95_ms"}
"""Fields of BenchmarkResult, of its MiscMetrics and of its LatencyMetrics, by number."""


class Timing(NamedTuple):
    """Milliseconds of so many runs."""

    median_ms: float
    p5_ms: float
    p95_ms: float
    runs: int


def read_timing(path: Path) -> Timing:
    """Reads a tool's file. Raises ValueError for one that none of the known tools wrote."""
    readers: Mapping[str, Callable[[Path], Timing]] = {
        ".json": _of_json, ".pb": _of_protobuf, ".csv": _of_qnn_events,
    }  # fmt: skip
    reader = readers.get(path.suffix)
    if reader is None:
        raise ValueError(f"{path} ends in {path.suffix!r}; allowed: {', '.join(readers)}")
    try:
        return reader(path)
    except (KeyError, TypeError, IndexError, struct.error, json.JSONDecodeError) as error:
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
    raise ValueError(f"{path} has none of {', '.join(QNN_EVENTS)} in US")


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
    value = shift = 0
    while message[at] & 128:
        value, shift, at = value | (message[at] & 127) << shift, shift + 7, at + 1
    return value | message[at] << shift, at + 1
