"""Context binaries for phones, as part of an export.

    context-SM8750-00.bin   a shard of layers, every bucket a graph, one copy of the weights

The compiler starts from float32 files, so a context holds as many layers as 2 GB of float32: two of
LLaDA-8B's. A binary whose graphs share weights cannot be emulated; its twin without sharing, from
the same file by the same compiler, is, with one bucket.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from llada_jax import atomic
from llada_jax.backend.exported import verify
from llada_jax.backend.litert import tflite
from llada_jax.backend.lower import check, lower
from llada_jax.backend.protocol import Bucket, Weights
from llada_jax.backend.qnn.compiler import Compilation, compile_contexts
from llada_jax.backend.qnn.context import NpuGraph, extract_contexts, require_qnn
from llada_jax.backend.qnn.emulator import Emulator
from llada_jax.backend.qnn.quantizer import quantize
from llada_jax.backend.recorded_inputs import Inputs
from llada_jax.backend.steps import body_step, resized
from llada_jax.backend.weights import stored_as
from llada_jax.config import STATIC_PRECISIONS, ModelConfig, PhoneConfig, require
from llada_jax.model.params import named_specs

_A16_BROKEN_ROWS = 16


class Job(NamedTuple):
    """What to compile, for which phones."""

    model: ModelConfig
    weights: Weights
    phones: PhoneConfig
    buckets: Sequence[Bucket]
    samples: Sequence[Inputs]
    """Of the whole body, for static quantization."""
    verify: bool


def check_job(job: Job, shards: Sequence[range]) -> None:
    """Raise ValueError, or the error of `require_qnn`, for what cannot be compiled."""
    require_qnn()
    static = job.phones.precision in STATIC_PRECISIONS
    require(
        not static or bool(job.samples),
        f"precision is {job.phones.precision!r}, which needs recorded forwards; allowed: fp16 and "
        "int8 without",
    )
    require(
        not static or len(shards) == 1,
        f"precision is {job.phones.precision!r}, but the layers take {len(shards)} contexts; "
        "allowed: fp16 and int8 where one context does not hold them all",
    )
    rows = [bucket.rows for bucket in job.buckets]
    require(
        not job.phones.precision.startswith("a16") or _A16_BROKEN_ROWS not in rows,
        f"rows has {_A16_BROKEN_ROWS}, which QNN computes wrongly with {job.phones.precision}; "
        "allowed: other numbers of rows",
    )
    check(lower(body_step(job.model, range(job.model.n_layers), job.buckets[0])), "qnn")


def float32_shards(model: ModelConfig) -> list[range]:
    """Layers by the context that holds them."""
    specs = named_specs(model)
    shards, size = [range(0, 0)], 0
    for layer in range(model.n_layers):
        needed = tflite.file_bytes({
            name: stored_as(name, spec.shape, "float32")
            for name, spec in specs.items()
            if name.startswith(f"layers.{layer}.")
        })  # fmt: skip
        if size + needed > tflite.MAX_FILE_BYTES * 0.95 and size:
            shards.append(range(layer, layer))
            size = 0
        shards[-1] = range(shards[-1].start, layer + 1)
        size += needed
    return shards


def compile_for_phones(
    folder: Path, job: Job, finished: Mapping[str, dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each binary's name, and its entry in the manifest; those that are `finished` stay."""
    for index, layers in enumerate(float32_shards(job.model)):
        names = {soc: f"context-{soc}-{index:02}.bin" for soc in job.phones.socs}
        yield from ((name, finished[name]) for name in names.values() if name in finished)
        missing = {soc: name for soc, name in names.items() if name not in finished}
        if not missing:
            continue
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            quantized = _quantized(Path(scratch), job, layers, job.buckets)
            twin = _quantized(Path(scratch), job, layers, job.buckets[:1]) if job.verify else None
            bar = tqdm(missing.items(), desc=f"layers {layers.start}-{layers.stop - 1}", unit="SoC")
            for soc, name in bar:
                error = _emulate(twin, soc, job, layers) if twin else None
                compiled, graphs = _compile(quantized, folder / name, soc)
                yield name, _entry(name, layers, compiled, graphs, job, error)


def _quantized(scratch: Path, job: Job, layers: range, buckets: Sequence[Bucket]) -> Path:
    steps = [lower(body_step(job.model, layers, bucket)) for bucket in buckets]
    wide, narrow = (scratch / f"{len(buckets)}.{kind}.tflite" for kind in ("wide", "narrow"))
    tflite.write(wide, tflite.convert(steps), tflite.shared_weights(steps), job.weights)
    samples = {
        bucket.name: [resized(sample, bucket) for sample in job.samples] for bucket in buckets
    }
    static = job.phones.precision in STATIC_PRECISIONS
    quantize(wide, narrow, job.phones.precision, samples if static else None)
    wide.unlink()
    return narrow


def _compile(quantized: Path, path: Path, soc: str) -> tuple[Compilation, Sequence[NpuGraph]]:
    with tempfile.TemporaryDirectory(dir=quantized.parent) as scratch:
        compiled = compile_contexts(
            quantized, Path(scratch) / "all.tflite", soc, weight_sharing=True
        )
        (context,) = extract_contexts(compiled.path)
        atomic.write_bytes(path, context.binary)
        return compiled, context.graphs


def _emulate(twin: Path, soc: str, job: Job, layers: range) -> float:
    """The error of one bucket against JAX in float32."""
    bucket = job.buckets[0]
    inputs = job.samples[0] if job.samples else None
    if inputs is None:
        inputs = verify.example(job.model, layers, bucket)
    inputs = resized(inputs, bucket)
    specs = {name: stored_as(name, spec.shape, "float32")
             for name, spec in named_specs(job.model).items()}  # fmt: skip
    stored = verify.StoredWeights(job.weights, specs)
    wanted = verify.reference(job.model, layers, bucket, inputs, stored)
    with tempfile.TemporaryDirectory(dir=twin.parent) as scratch:
        out = Path(scratch) / "twin.tflite"
        compile_contexts(twin, out, soc)
        found = Emulator(out).run(bucket.name, inputs)["hidden"]
    error = verify.relative_error(found, wanted)
    verify.require_close(error, job.phones.precision, f"the context for {soc}, layers {layers},")
    return error


def _entry(
    name: str,
    layers: range,
    compiled: Compilation,
    graphs: Sequence[NpuGraph],
    job: Job,
    error: float | None,
) -> dict[str, Any]:
    return {
        "file": name,
        "soc": compiled.soc,
        "precision": job.phones.precision,
        "start": layers.start,
        "stop": layers.stop,
        "graphs": [_graph_entry(graph) for graph in graphs],
        "ddr_bytes": {name: t._asdict() for name, t in compiled.traffic.items()},
        "compile_seconds": round(compiled.seconds, 2),
        "qnn_version": compiled.qnn_version,
        "emulated_error": error,
    }


def _graph_entry(graph: NpuGraph) -> dict[str, Any]:
    def tensors(those: Sequence[Any]) -> list[dict[str, Any]]:
        return [
            {
                "argument": tensor.argument,
                "name": tensor.name,
                "shape": list(tensor.shape),
                "dtype": tensor.dtype.name,
                "scale": tensor.scale,
                "zero_point": tensor.zero_point,
            }
            for tensor in those
        ]

    return {
        "signature": graph.signature,
        "name": graph.name,
        "inputs": tensors(graph.inputs),
        "outputs": tensors(graph.outputs),
    }
