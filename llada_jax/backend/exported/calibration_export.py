"""The extra files of a calibration export: graphs to time on a phone, and a script that does so.

calibration-rows.csv             the measurements to make, one per line
calibration-SM8750-....tflite    layers and single matrix products, compiled for its NPU
golden-....tar                   inputs and outputs of each signature of a graph, for all graphs
calibration.sh                   compares and times everything under `adb shell`, pulls the results
emulated-SM8750-00-....tflite    one bucket each, for `backend="qnn"` on this machine

The times are used by `llada_jax.phones.calibration` to fit a phone's profile.
"""

import csv
import math
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from llada_jax.backend.exported import verify
from llada_jax.backend.exported.contents import Export, buckets, float32_shards, shard_layers
from llada_jax.backend.exported.manifest import File, UnfinishedExport
from llada_jax.backend.protocol import Bucket, Step
from llada_jax.backend.qnn.compiler import compile_context
from llada_jax.backend.qnn.quantizer import write_quantized
from llada_jax.backend.steps import body_step, head_chunks
from llada_jax.config import ExportConfig, ModelConfig, Precision, require
from llada_jax.io import atomic
from llada_jax.model.params import named_specs
from llada_jax.model.quantize import linear

ROWS = (1, 32, 33, 64, 65, 96, 128)
"""Numbers of rows on both sides of every edge of a tile, and a single row."""
CACHES = (256, 4096)
"""Cache lengths; two, because one alone cannot separate the cost of attention scores. At the long
one, scores are a third of the time: with less their cost is not identified."""
_SHARDS = (1, 4)
"""Numbers of layers; two, because their difference is the time of layers without overhead."""
_MATRICES = ("ffn.down", "ffn.gate")
"""Matrices for single products: their unpacking may differ in speed."""
STORED: Mapping[str, Literal["fp16", "int8", "int4"]] = {
    "fp16": "fp16", "int8": "int8", "a16w8": "int8", "a8w8": "int8", "a16w4": "int4",
}  # fmt: skip
"""Storage of the weights, by a phone's precision."""
_PRODUCTS: Mapping[str, Precision] = {"fp16": "fp16", "int8": "int8", "int4": "a16w4"}
"""Precision of single products, by the storage of their weights."""
Row = dict[str, Any]
_COLUMNS = ("name", "file", "signature", "graph", "processor", "precision", "rows", "cache",
            "layers", "weight", "thermal", "version")  # fmt: skip


def calibration_rows(
    caches: Sequence[int] = CACHES,
    shards: Sequence[int] = _SHARDS,
    body: str = "int4",
    head_rows: Sequence[int] = (1, 8, 64),
) -> list[Row]:
    """Returns the measurements to make on a phone, the most informative first, as fields of a
    measurement without times; `file` and `signature` identify the graph.

    The first 16 were chosen among all rows, one after the other: each is the one that is expected
    to lower the posterior variance of the phone's numbers most, for LLaDA-8B on SM8750.

    Args:
      caches: Two lengths, ascending.
      shards: Two numbers of layers.
      body: Storage of the layers' weights.
      head_rows: Numbers of rows for `head.tflite`, which is int8.
    """
    (short, long), (one, more), products = caches, shards, [*_PRODUCTS]
    first = [(65, short, more), (128, long, more), (1, short, more), (1, short, one)]
    first += [(96, short, more), (96, long, more), (32, short, more), (128, long, one)]
    rows = [_layers(*shape, body) for shape in first]
    down = _MATRICES[0]
    rows += [_product_row(down, 1, products[-1]), _product_row(down, 1, products[0])]
    rows += [_head_row(n) for n in dict.fromkeys([*head_rows[:1], *head_rows[-1:]])]
    rows += [_layers(32, short, one, body), _layers(64, long, one, body)]
    rows += [_product_row(down, n, products[0]) for n in (32, 64)]
    rows += map(_head_row, head_rows)
    rows += [_layers(*shape, body) for shape in product(ROWS, (short, long), (one, more))]
    rows += [_product_row(*args) for args in product(_MATRICES, (1, 32, 64, 128), products)]
    return [*{row["name"]: row for row in rows}.values()]


def _layers(rows: int, cache: int, layers: int, precision: str) -> Row:
    sizes = {"cache": cache, "layers": layers}
    return _row("layers", f"layers{layers}", Bucket(rows, cache).name, rows, precision, **sizes)


def _head_row(rows: int) -> Row:
    return _row("head", "head", f"rows{rows}", rows, "int8")


def _product_row(weight: str, rows: int, precision: str) -> Row:
    return _row("product", _file(weight, precision), f"rows{rows}", rows, precision, weight=weight)


def _file(matrix: str, precision: str) -> str:
    return f"{matrix.replace('.', '_')}_{precision}"


def _row(graph: str, file: str, signature: str, rows: int, precision: str, **more: Any) -> Row:
    return {
        "name": f"{file}-{signature}", "file": file, "signature": signature, "graph": graph,
        "processor": "cpu" if graph == "head" else "npu", "rows": rows, "precision": precision,
        **more,
    }  # fmt: skip


def emulated_name(soc: str, index: int, bucket: Bucket) -> str:
    """Returns the file name of one bucket of a context, for the emulator."""
    return f"emulated-{soc}-{index:02}-{bucket.name}.tflite"


def write_calibration(unfinished: UnfinishedExport, export: Export) -> Iterator[File]:
    """Yields the files of a calibration export; files from an interrupted export are kept."""
    if not export.settings.phones.calibration:
        return
    settings, steps = export.settings, _steps(export.model)
    precision = settings.phones.precision
    shards = [min(n, export.model.n_layers) for n in _SHARDS]
    heads = [] if settings.quant == "float32" else settings.rows[:: max(1, len(settings.rows) // 3)]
    rows = calibration_rows(_caches(export.model), shards, STORED[precision], heads)
    yield unfinished.file("calibration-rows.csv", partial(write_rows, rows))
    script = Path(__file__).with_name("calibration.sh").read_bytes()
    yield unfinished.file("calibration.sh", lambda path: atomic.write_bytes(path, script))
    for soc in settings.phones.socs:
        for name, graph_steps in steps.items():
            write = partial(_write_compiled, export, graph_steps, soc, _precision(name, export))
            yield unfinished.file(f"calibration-{soc}-{name}.tflite", write)
        for index, layers in enumerate(float32_shards(export.model)):
            for bucket in export.buckets:
                step = body_step(export.model, layers, bucket)
                write = partial(_write_compiled, export, [step], soc, precision)
                yield unfinished.file(emulated_name(soc, index, bucket), write)
    for name, graph, quant, cases in _golden(export, steps):
        path, allowed = unfinished.folder / graph, verify.tolerance(quant)
        write = partial(verify.write_golden, graph=path, allowed=allowed, cases=cases)
        yield unfinished.file(f"golden-{name}.tar", write)


def _golden(export: Export, steps: Mapping[str, Sequence[Step]]) -> Iterator[tuple[Any, ...]]:
    """Yields each graph's name, its file for the first phone, its precision, and golden data by
    signature."""
    model, settings, soc = export.model, export.settings, export.settings.phones.socs[0]
    exact = verify.StoredWeights(export.weights, settings.quant)

    def bodies(layers: range, stored: verify.StoredWeights) -> dict[str, partial[verify.Golden]]:
        return {
            b.name: partial(verify.golden_body, model, layers, b, stored) for b in export.buckets
        }

    def rounded(precision: Precision) -> verify.StoredWeights:
        quant = STORED[precision]
        return verify.StoredWeights(export.weights, "float32" if quant == "fp16" else quant)

    for index, layers in enumerate(shard_layers(model, settings)):
        name = f"shard-{index:02}"
        yield name, f"{name}.tflite", settings.quant, bodies(layers, exact)
    chunks = {f"_chunk{i}": i for i in range(len(head_chunks(model)))}
    heads = {
        f"rows{n}{end}": partial(verify.golden_head, model, n, chunk, exact)
        for n in settings.rows
        for end, chunk in {"": None, **chunks}.items()
    }
    yield "head", "head.tflite", settings.quant, heads
    for index, layers in enumerate(float32_shards(model)):
        file, precision = f"context-{soc}-{index:02}.tflite", settings.phones.precision
        yield f"context-{index:02}", file, precision, bodies(layers, rounded(precision))
    for name, graph_steps in steps.items():
        precision = _precision(name, export)
        stored = rounded(precision)
        cases = {s.name: partial(verify.golden_step, model, s, stored) for s in graph_steps}
        yield name, f"calibration-{soc}-{name}.tflite", precision, cases


def _precision(name: str, export: Export) -> Precision:
    """Returns the precision of a calibration graph: from its name, or the export's for layers."""
    if name.startswith("layers"):
        return export.settings.phones.precision
    return _PRODUCTS[name.rpartition("_")[2]]


def _caches(model: ModelConfig) -> tuple[int, int]:
    long = min(CACHES[1], model.max_length)
    require(long > 1, f"max_length is {long}; allowed: 2 or more, for two lengths of the cache")
    return min(CACHES[0], long // 2), long


def _steps(model: ModelConfig) -> dict[str, list[Step]]:
    """Returns the steps to compile, by file: whole layers, then products of the first layer."""
    rows = calibration_rows(_caches(model))
    layer_rows = [row for row in rows if row["graph"] == "layers"]
    buckets = dict.fromkeys(Bucket(row["rows"], row["cache"]) for row in layer_rows)
    steps = {
        f"layers{n}": [body_step(model, range(n), bucket) for bucket in buckets]
        for n in (min(count, model.n_layers) for count in _SHARDS)
    }
    counts = dict.fromkeys(row["rows"] for row in rows if row["graph"] == "product")
    for matrix, stored in product(_MATRICES, _PRODUCTS):
        steps[_file(matrix, stored)] = [_product(model, matrix, n) for n in counts]
    return steps


def _product(model: ModelConfig, matrix: str, rows: int) -> Step:
    name = f"layers.0.{matrix}"
    shape = named_specs(model)[name].shape
    return Step(
        name=f"rows{rows}",
        function=lambda weights, inputs: {"y": linear(inputs["x"], weights[name])},
        weights={name: shape},
        inputs={"x": (rows, shape[1])},
    )


def signature_rows(
    settings: ExportConfig, shards: Sequence[tuple[str, int]], contexts: Sequence[Mapping[str, Any]]
) -> Iterator[Row]:
    """Yields every signature of an export as a row to time; `shards` are files and their layers."""
    quant = settings.quant.partition("_")[0]
    for file, layers in shards:
        for bucket in (b for b in buckets(settings) if b.canvases == 1):
            sizes = {"cache": bucket.cache, "layers": layers, "processor": "cpu"}
            yield _row("layers", file, bucket.name, bucket.rows, quant, **sizes)
    for rows in settings.rows:
        head = "float32" if quant == "float32" else "int8"
        yield _row("head", "head.tflite", f"rows{rows}", rows, head)
    for context in contexts:
        for graph in context["graphs"]:
            rows, cache = (int(n) for n in re.findall(r"\d+", graph["signature"]))
            sizes = {"cache": cache, "layers": context["stop"] - context["start"]}
            stored = STORED[context["precision"]]
            yield _row("layers", context["compiled"], graph["signature"], rows, stored, **sizes)


def graph_lines(contexts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields a line for each graph of the contexts: file, signature, name, the input lists of
    qnn-net-run (`__` skips a graph), and each input's name and bytes."""
    for context in contexts:
        for index, graph in enumerate(context["graphs"]):
            lists = ["__"] * len(context["graphs"])
            lists[index] = "input_list.txt"
            sizes = [
                f"{t['name']}={math.prod(t['shape']) * np.dtype(t['dtype']).itemsize}"
                for t in graph["inputs"]
            ]
            fields = context["compiled"], graph["signature"], graph["name"], ",".join(lists), *sizes
            yield " ".join(fields) + "\n"


def write_rows(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    with atomic.new_file(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        table: Any = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def _write_compiled(
    export: Export, steps: Sequence[Step], soc: str, precision: Precision, path: Path
) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        is_product = steps[0].inputs.keys() == {"x"}  # its time does not depend on the numbers
        samples = [verify.noise(steps[-1])] if is_product else export.samples
        quantized = write_quantized(Path(scratch), steps, export.weights, precision, samples)
        compilation = compile_context(quantized, soc, weight_sharing=len(steps) > 1)
    atomic.write_bytes(path, compilation.compiled)
