"""Compiles the context binaries for phones' NPUs, as part of an export.

    context-SM8750-00.bin   a shard of layers, every bucket a graph, one copy of the weights
    context-....onnx        one graph of it, for ONNX Runtime (a node EPContext)

The compiler reads float32 files of less than 2 GB, so a context holds few layers of a large model:
two of LLaDA-8B. Graphs that share weights cannot be emulated; so a context of one bucket, made in
the same way by the same compiler, is emulated and compared with JAX instead.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from llada_jax.backend.exported import verify
from llada_jax.backend.exported.contents import Export, float32_shards
from llada_jax.backend.exported.manifest import UnfinishedExport
from llada_jax.backend.lower import check, lower
from llada_jax.backend.qnn.compiler import Compilation, compile_context
from llada_jax.backend.qnn.context import NpuGraph, Tensor
from llada_jax.backend.qnn.emulated_npu import EmulatedNpu, epcontext_model
from llada_jax.backend.qnn.quantizer import write_quantized
from llada_jax.backend.steps import body_step, resized
from llada_jax.config import STATIC_PRECISIONS, require
from llada_jax.io import atomic

_A16_BROKEN_ROWS = 16  # QNN 2.50 computes int16 activations wrongly for this number of rows


def check_phones(export: Export) -> None:
    """Raises the errors of `EmulatedNpu`, and ValueError for models that cannot be compiled."""
    precision, shards = export.settings.phones.precision, float32_shards(export.model)
    static = precision in STATIC_PRECISIONS
    EmulatedNpu(precision=precision, samples=export.samples)
    require(
        not static or len(shards) == 1,
        f"precision is {precision!r}, but the layers take {len(shards)} contexts; allowed: fp16 "
        "and int8 where one context does not hold them all",
    )
    require(
        not precision.startswith("a16") or _A16_BROKEN_ROWS not in export.settings.rows,
        f"rows has {_A16_BROKEN_ROWS}, which QNN computes wrongly with {precision}; allowed: other "
        "numbers of rows",
    )
    check(lower(body_step(export.model, range(export.model.n_layers), export.buckets[0])), "qnn")


def compile_for_phones(unfinished: UnfinishedExport, export: Export) -> Iterator[dict[str, Any]]:
    """Yields the manifest's entry of each binary, which is compiled unless it exists already."""
    folder, finished, phones = unfinished.folder, unfinished.contexts, export.settings.phones
    buckets = [bucket for bucket in export.buckets if bucket.canvases == 1]
    for index, layers in enumerate(float32_shards(export.model) if phones.socs else []):
        names = {soc: f"context-{soc}-{index:02}.bin" for soc in phones.socs}
        missing = {soc: name for soc, name in names.items() if name not in finished}
        if missing:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                steps = [body_step(export.model, layers, bucket) for bucket in buckets]
                quantized = write_quantized(
                    Path(scratch), steps, export.weights, phones.precision, export.samples
                )
                words = f"layers {layers.start}-{layers.stop - 1}"
                for soc, name in tqdm(missing.items(), desc=words, unit="SoC"):
                    error = _emulated_error(soc, export, layers) if export.verify else None
                    compilation = compile_context(quantized, soc, weight_sharing=True)
                    entry = _entry(name, layers, compilation, export, error)
                    atomic.write_bytes(folder / name, compilation.context.binary)
                    for graph in compilation.context.graphs:
                        wrapper = folder / _onnx_name(name, graph)
                        atomic.write_bytes(wrapper, epcontext_model(graph, name))
                    atomic.write_bytes(folder / entry["compiled"], compilation.compiled)
                    unfinished.add_context(name, entry)
        yield from (finished[name] for name in names.values())


def _emulated_error(soc: str, export: Export, layers: range) -> float:
    """Returns the error of one bucket on the emulated NPU against JAX in float32."""
    bucket, precision = export.buckets[0], export.settings.phones.precision
    step = body_step(export.model, layers, bucket)
    if export.samples:
        inputs = resized(export.samples[0], bucket)
    else:
        inputs = verify.example(export.model, layers, bucket)
    stored = verify.StoredWeights(export.weights, "float32")
    expected = verify.reference(export.model, layers, bucket, inputs, stored)["hidden"]
    npu = EmulatedNpu(soc, precision, export.samples)
    actual = npu.compile([step], export.weights)[step.name].run(inputs)["hidden"]
    error = verify.relative_error(actual, expected)
    verify.require_close(error, precision, f"the context for {soc}, layers {layers},")
    return error


def _onnx_name(context: str, graph: NpuGraph) -> str:
    return f"{Path(context).stem}-{graph.signature}.onnx"


def _entry(
    name: str, layers: range, compilation: Compilation, export: Export, error: float | None
) -> dict[str, Any]:
    return {
        "file": name,
        "compiled": f"{Path(name).stem}.tflite",  # contains the context
        "soc": compilation.context.soc,
        "precision": export.settings.phones.precision,
        "start": layers.start,
        "stop": layers.stop,
        "graphs": [
            graph._asdict()
            | {end: list(map(_tensor_entry, getattr(graph, end))) for end in ("inputs", "outputs")}
            | {"onnx": _onnx_name(name, graph)}
            for graph in compilation.context.graphs
        ],
        "ddr_bytes": {name: t._asdict() for name, t in compilation.traffic.items()},
        "compile_seconds": round(compilation.seconds, 2),
        "qnn_version": compilation.qnn_version,
        "emulated_error": error,
    }


def _tensor_entry(tensor: Tensor) -> dict[str, Any]:
    return tensor._asdict() | {"shape": list(tensor.shape), "dtype": tensor.dtype.name}
