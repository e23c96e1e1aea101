"""What a calibration export adds: graphs to time on a phone, and all that the timing needs.

calibration-rows.csv             what to measure, a line each
calibration-SM8750-....tflite    layers and single products, compiled for its NPU
golden-....tar                   inputs and outputs of each signature of a graph, for all graphs
calibration.sh                   compares and times all under `adb shell`, and pulls the results
emulated-SM8750-00-....tflite    a bucket each, for `backend="qnn"` on this machine
"""

import csv
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

from llada_jax import atomic
from llada_jax.backend.exported import golden, verify
from llada_jax.backend.exported.calibration_rows import CACHES, MATRICES, SHARDS, calibration_rows
from llada_jax.backend.exported.contents import Export, float32_shards, shard_layers
from llada_jax.backend.exported.manifest import File
from llada_jax.backend.exported.unfinished import UnfinishedExport
from llada_jax.backend.protocol import Bucket, Step
from llada_jax.backend.qnn.compiler import compile_context
from llada_jax.backend.qnn.quantizer import write_quantized
from llada_jax.backend.steps import body_step, head_chunks
from llada_jax.config import ModelConfig, Precision, require
from llada_jax.model.params import named_specs
from llada_jax.model.quantize import linear

STORED: Mapping[str, Literal["fp16", "int8", "int4"]] = {
    "fp16": "fp16", "int8": "int8", "a16w8": "int8", "a8w8": "int8", "a16w4": "int4",
}  # fmt: skip
"""How the weights of a phone's precision are stored."""
_PRODUCTS: Mapping[str, Precision] = {"fp16": "fp16", "int8": "int8", "int4": "a16w4"}
"""The precision of single products, by how their weights are stored."""
_COLUMNS = ("name", "file", "signature", "graph", "processor", "precision", "rows", "cache",
            "layers", "weight", "thermal", "version")  # fmt: skip


def emulated_name(soc: str, index: int, bucket: Bucket) -> str:
    """Returns the file of one bucket of a context, which the emulator runs."""
    return f"emulated-{soc}-{index:02}-{bucket.name}.tflite"


def write_calibration(unfinished: UnfinishedExport, export: Export) -> Iterator[File]:
    """Yields the files, each written unless it is there already."""
    if not export.settings.phones.calibration:
        return
    rows, steps = _rows(export), _steps(export.model)
    yield unfinished.file("calibration-rows.csv", partial(_write_rows, rows))
    script = Path(__file__).with_name("calibration.sh").read_bytes()
    yield unfinished.file("calibration.sh", lambda path: atomic.write_bytes(path, script))
    for soc in export.settings.phones.socs:
        for name, some in steps.items():
            write = partial(_write_compiled, export, some, soc, _precision(name, export))
            yield unfinished.file(f"calibration-{soc}-{name}.tflite", write)
        for index, layers in enumerate(float32_shards(export.model)):
            for bucket in export.buckets:
                step = body_step(export.model, layers, bucket)
                write = partial(
                    _write_compiled, export, [step], soc, export.settings.phones.precision
                )
                yield unfinished.file(emulated_name(soc, index, bucket), write)
    for name, graph, precision, cases in _golden(export, steps):
        path, allowed = unfinished.folder / graph, verify.tolerance(precision)
        write = partial(golden.write_golden, graph=path, allowed=allowed, cases=cases)
        yield unfinished.file(f"golden-{name}.tar", write)


def _golden(export: Export, steps: Mapping[str, Sequence[Step]]) -> Iterator[tuple[Any, ...]]:
    """Yields each graph's name, its file for the first phone, its precision, and its signatures."""
    model, settings, soc = export.model, export.settings, export.settings.phones.socs[0]
    kept = verify.StoredWeights(export.weights, settings.quant)

    def bodies(layers: range, stored: verify.StoredWeights) -> dict[str, partial[golden.Golden]]:
        return {b.name: partial(golden.of_body, model, layers, b, stored) for b in export.buckets}

    def rounded(precision: Precision) -> verify.StoredWeights:
        quant = STORED[precision]
        return verify.StoredWeights(export.weights, "float32" if quant == "fp16" else quant)

    for index, layers in enumerate(shard_layers(model, settings)):
        name = f"shard-{index:02}"
        yield name, f"{name}.tflite", settings.quant, bodies(layers, kept)
    chunks = {f"_chunk{i}": i for i in range(len(head_chunks(model)))}
    heads = {
        f"rows{n}{end}": partial(golden.of_head, model, n, chunk, kept)
        for n in settings.rows
        for end, chunk in {"": None, **chunks}.items()
    }
    yield "head", "head.tflite", settings.quant, heads
    for index, layers in enumerate(float32_shards(model)):
        file, precision = f"context-{soc}-{index:02}.tflite", settings.phones.precision
        yield f"context-{index:02}", file, precision, bodies(layers, rounded(precision))
    for name, some in steps.items():
        precision = _precision(name, export)
        stored = rounded(precision)
        cases = {step.name: partial(golden.of_step, model, step, stored) for step in some}
        yield name, f"calibration-{soc}-{name}.tflite", precision, cases


def _precision(name: str, export: Export) -> Precision:
    """Returns that of a graph to time: a product's own, or the export's for layers."""
    if name.startswith("layers"):
        return export.settings.phones.precision
    return _PRODUCTS[name.rpartition("_")[2]]


def _caches(model: ModelConfig) -> tuple[int, int]:
    long = min(CACHES[1], model.max_length)
    require(long > 1, f"max_length is {long}; allowed: 2 or more, for two lengths of the cache")
    return min(CACHES[0], long // 2), long


def _rows(export: Export) -> list[dict[str, Any]]:
    settings = export.settings
    shards = [min(n, export.model.n_layers) for n in SHARDS]
    heads = [] if settings.quant == "float32" else settings.rows[:: max(1, len(settings.rows) // 3)]
    stored = STORED[settings.phones.precision]
    return calibration_rows(_caches(export.model), shards, stored, [*_PRODUCTS], heads)


def _steps(model: ModelConfig) -> dict[str, list[Step]]:
    """Returns what is compiled, by file: whole layers, then products of the first layer's."""
    rows = calibration_rows(_caches(model), products=[*_PRODUCTS])
    found: dict[str, list[Step]] = {}
    for n in dict.fromkeys(min(n, model.n_layers) for n in SHARDS):
        buckets = dict.fromkeys(
            Bucket(row["rows"], row["cache"]) for row in rows if row["graph"] == "layers"
        )
        found[f"layers{n}"] = [body_step(model, range(n), bucket) for bucket in buckets]
    counts = dict.fromkeys(row["rows"] for row in rows if row["graph"] == "product")
    for matrix, stored in product(MATRICES, _PRODUCTS):
        name = f"{matrix.replace('.', '_')}_{stored}"
        found[name] = [_product(model, matrix, n) for n in counts]
    return found


def _product(model: ModelConfig, matrix: str, rows: int) -> Step:
    name = f"layers.0.{matrix}"
    shape = named_specs(model)[name].shape
    return Step(
        name=f"rows{rows}",
        function=lambda weights, inputs: {"y": linear(inputs["x"], weights[name])},
        weights={name: shape},
        inputs={"x": (rows, shape[1])},
    )


def _write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    with atomic.new_file(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        table: Any = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def _write_compiled(
    export: Export, steps: Sequence[Step], soc: str, precision: Precision, path: Path
) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        is_product = steps[0].inputs.keys() == {"x"}  # timed alike, whatever it multiplies
        samples = [golden.noise(steps[-1])] if is_product else export.samples
        quantized = write_quantized(Path(scratch), steps, export.weights, precision, samples)
        made = compile_context(quantized, soc, weight_sharing=len(steps) > 1)
    atomic.write_bytes(path, made.compiled)
