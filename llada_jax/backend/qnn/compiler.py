"""Steps in .tflite files, quantized and compiled for the Hexagon NPU (HTP) of Snapdragon phones.

The compiler is LiteRT's Qualcomm plugin on the QNN libraries of the `onnxruntime-qnn` wheel, which
also emulate the NPU on x86-64. All of it runs offline, and none of it says how long a phone takes.

`Precision` says how products with constant weights are computed; the NPU does everything else in
float16. `int8` is int8 weights with float16 activations. `a16w8` is int16 activations, in ranges
that calibration fixes, with int8 weights; so are the others of that form. The NPU of QNN 2.50 gets
a16 wrong for exactly 16 rows where a product of activations comes before: take another number.
"""

import importlib.util
import os
import re
import shutil
import struct
import subprocess
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llada_jax.backend.qnn_context import (
    DISPATCH,
    SOCS,
    Context,
    Emulator,
    Graph,
    check_soc,
    extract_contexts,
    op_name,
    read_tflite,
    require_qnn,
    signatures,
    silenced,
)
from llada_jax.config import Precision, require, require_choice

__all__ = [
    "SOCS",
    "Compiled",
    "Context",
    "Emulator",
    "Graph",
    "Traffic",
    "compile_contexts",
    "extract_contexts",
    "quantize",
    "require_qnn",
]

Calibration = Mapping[str, Sequence[Mapping[str, np.ndarray]]]
"""Signature -> samples of all its inputs, by name."""


class Traffic(NamedTuple):
    """Bytes between NPU and DRAM in one run of a graph, by the compiler's own account."""

    spill: int  # activations that find no room in the NPU's memory
    fill: int  # and come back
    write: int  # all that is written, spills included
    read: int  # all that is read: fills, weights, inputs


@dataclass(frozen=True)
class Compiled:
    """A compiled .tflite file, and what the compiler said about it."""

    path: Path
    soc: str
    weight_sharing: bool
    context_bytes: int
    traffic: Mapping[str, Traffic]
    """By signature."""
    seconds: float
    """Of compiling."""
    qnn_version: str


def quantize(
    tflite: str | PathLike[str],
    out: str | PathLike[str],
    precision: Precision,
    calibration: Calibration | None = None,
) -> None:
    """Quantize the FULLY_CONNECTED ops with constant weights of a float32 .tflite file.

    Args:
      tflite: its constants may lie in the flatbuffer or after it.
      out: the file to write. For fp16 it is a copy: the compiler converts float32 itself.
      precision: weights get a scale for each output.
      calibration: real inputs of every signature, for a16w8, a8w8 and a16w4. An activation's range
        is all that it takes in them.

    Raises ImportError without the extra, ValueError where calibration does not fit the file.
    """
    require_qnn()
    require_choice("precision", precision, Precision)
    if precision == "fp16":
        with _new_file(Path(out)) as part:
            shutil.copyfile(tflite, part)
        return
    if precision != "int8":
        _check_calibration(Path(tflite), calibration or {})
    with silenced(), _new_file(Path(out)) as part:
        part.write_bytes(_quantized(Path(tflite), precision, calibration or {}))


def _quantized(tflite: Path, precision: Precision, calibration: Calibration) -> bytearray:
    from ai_edge_quantizer.qtyping import TFLOperationName
    from ai_edge_quantizer.quantizer import Quantizer
    from ai_edge_quantizer.recipe_manager import RecipeManager

    recipe, kind = RecipeManager(), TFLOperationName.FULLY_CONNECTED
    if precision == "int8":
        recipe.add_dynamic_config(".*", kind, num_bits=8)
    else:
        activations, weights = map(int, precision[1:].split("w"))
        recipe.add_static_config(".*", kind, activations, weights)
    for output in _products_of_activations(tflite):
        only_this = f"^{re.escape(output)};?$"
        recipe.add_quantization_config(only_this, kind, algorithm_key="no_quantize")
    ranges = _ranges(tflite, recipe, calibration) if recipe.need_calibration() else None
    quantizer = Quantizer(str(tflite), recipe.get_quantization_recipe())
    quantized = bytearray(quantizer.quantize(ranges).quantized_model or b"")
    _repair_signatures(quantized, tflite)
    return quantized


def _ranges(tflite: Path, recipe: Any, samples: Any) -> dict[str, Any]:
    """Tensor -> its lowest and highest value in all samples.

    The quantizer's own way is an average in which the first sample has nearly all the weight, so
    that values of the others are clipped.
    """
    from ai_edge_quantizer.calibrator import Calibrator
    from ai_edge_quantizer.utils.qsv_utils import min_max_update

    threads = os.cpu_count() or 1
    calibrator = Calibrator(str(tflite), threads, qsv_update_func=min_max_update)
    calibrator.calibrate(samples, recipe)
    return calibrator.get_model_qsvs()


def _repair_signatures(quantized: bytearray, tflite: Path) -> None:
    """Make signatures name the float32 outputs.

    Where an op that is quantized makes an output that other ops use too, the quantizer appends a
    dequantized one, but leaves the integers in the signature.
    """
    from ai_edge_litert.schema_py_generated import Model

    before, _ = read_tflite(tflite)
    places = {
        (signature.signatureKey, output.name): list(subgraph.outputs).index(output.tensorIndex)
        for signature, subgraph in signatures(before)
        for output in signature.outputs
    }
    model: Any = Model.GetRootAs(quantized)
    for signature in map(model.SignatureDefs, range(model.SignatureDefsLength())):
        outputs = model.Subgraphs(signature.SubgraphIndex()).OutputsAsNumpy()
        for output in map(signature.Outputs, range(signature.OutputsLength())):
            right = outputs[places[signature.SignatureKey(), output.Name()]]
            if output.TensorIndex() != right:
                # The index is the second field of its table, whose offset stands at 6.
                field = output._tab.Pos + output._tab.Offset(6)
                struct.pack_into("<I", quantized, field, right)


def _products_of_activations(tflite: Path) -> Iterator[str]:
    """Outputs of FULLY_CONNECTED ops without a constant, which matrices without a batch become."""
    model, _ = read_tflite(tflite)
    for subgraph in model.subgraphs:
        for operator in subgraph.operators or ():
            if op_name(model, operator) == "FULLY_CONNECTED":
                weight = model.buffers[subgraph.tensors[operator.inputs[1]].buffer]
                if weight.data is None and not weight.offset:
                    yield subgraph.tensors[operator.outputs[0]].name.decode()


def _check_calibration(tflite: Path, calibration: Calibration) -> None:
    model, _ = read_tflite(tflite)
    inputs = {
        signature.signatureKey.decode(): {entry.name.decode() for entry in signature.inputs}
        for signature, _ in signatures(model)
    }
    given = {name for name, samples in calibration.items() if samples}
    require(
        given == set(inputs),
        f"calibration has samples of {sorted(given)}; needed: {sorted(inputs)}",
    )
    for name, samples in calibration.items():
        for sample in samples:
            require(
                set(sample) == inputs[name],
                f"calibration of {name!r} has inputs {sorted(sample)}; "
                f"needed: {sorted(inputs[name])}",
            )


def compile_contexts(
    tflite: str | PathLike[str],
    out: str | PathLike[str],
    soc: str,
    *,
    weight_sharing: bool = False,
) -> Compiled:
    """Compile every signature of a .tflite file into a graph of one QNN context.

    Args:
      tflite: float32, or from `quantize`; its constants may lie in the flatbuffer or after it.
      out: the .tflite file to write, in which each signature is a single op of the NPU.
      soc: a name of `SOCS`.
      weight_sharing: one copy of the weights for all signatures, as is right for a phone.
        `Emulator` takes no such file of several signatures.

    Raises ImportError without the extra; ValueError for an unknown SoC, and where ops are left that
    the NPU does not take; RuntimeError with the end of its log where the compiler fails.
    """
    require_qnn()
    check_soc(soc)
    if not Path(tflite).is_file():
        raise FileNotFoundError(f"no file {tflite}")
    with _new_file(Path(out)) as part:
        start = time.perf_counter()
        log = _run_compiler(Path(tflite), part, soc, weight_sharing)
        seconds = time.perf_counter() - start
        _check_offloaded(part, soc, log)
        contexts = extract_contexts(part)
        traffic = _traffic(log.stdout, [graph for context in contexts for graph in context.graphs])
    version = re.search(r"SDK version: v([\d.]+)", log.stderr)
    return Compiled(
        path=Path(out),
        soc=soc,
        weight_sharing=weight_sharing,
        context_bytes=sum(len(context.binary) for context in contexts),
        traffic=traffic,
        seconds=seconds,
        qnn_version=version[1] if version else "unknown",
    )


def _run_compiler(
    tflite: Path, out: Path, soc: str, weight_sharing: bool
) -> subprocess.CompletedProcess[str]:
    litert, qnn = _folder("ai_edge_litert"), _folder("onnxruntime_qnn")
    with tempfile.TemporaryDirectory() as stand_in:
        # The plugin is linked against a library for low-power audio that the wheel lacks and HTP
        # never calls. Under its name, one that is loaded anyway contents the loader.
        Path(stand_in, "libQnnLpai.so").symlink_to(qnn / "libQnnSystem.so")
        folders = [str(qnn), stand_in, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        command = [
            str(litert / "tools" / "apply_plugin_main"),
            "--cmd=apply",
            f"--model={tflite}",
            f"--o={out}",
            "--soc_manufacturer=Qualcomm",
            f"--soc_model={soc}",
            f"--libs={litert / 'vendors' / 'qualcomm' / 'compiler'}",
            "--err=--",
            f"--qualcomm_enable_weight_sharing={str(weight_sharing).lower()}",
        ]
        environment = os.environ | {"LD_LIBRARY_PATH": ":".join(folders)}
        log = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace"
        )
    if log.returncode:
        raise RuntimeError(
            f"compiling {tflite} for {soc} failed with status {log.returncode}:\n"
            + "\n".join(_complaints(log)[-10:])
        )
    return log


def _folder(package: str) -> Path:
    """Where a package lies, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(f"no {package}")
    return Path(spec.origin).parent


def _complaints(log: subprocess.CompletedProcess[str]) -> list[str]:
    """What the log reports as errors, each once, or else its last lines."""
    lines = [line.strip() for line in (log.stdout + log.stderr).splitlines()]
    errors = [
        re.split(r"<E>|\[ ERROR \]", line)[-1].strip()
        for line in lines
        if re.search("ERROR|Fail", line)
    ]
    return list(dict.fromkeys(errors)) or lines[-10:]


def _check_offloaded(compiled: Path, soc: str, log: subprocess.CompletedProcess[str]) -> None:
    model, _ = read_tflite(compiled)
    outside = []
    for signature, subgraph in signatures(model):
        ops = Counter(op_name(model, operator) for operator in subgraph.operators)
        partitions = ops.pop(DISPATCH, 0)
        if ops or partitions != 1:
            left = ", ".join(f"{count} {name}" for name, count in sorted(ops.items())) or "nothing"
            name = signature.signatureKey.decode()
            outside.append(f"  signature {name!r}: {partitions} partitions, outside: {left}")
    if outside:
        said = [f"  {line}" for line in _complaints(log)[:6]]
        first = f"{soc} does not take the whole of each signature as one partition:"
        raise ValueError("\n".join([first, *outside, "the compiler says:", *said]))


_GRAPH = re.compile(r"QnnGraph_create started for graph (\S+)")
_BYTES = re.compile(r"\b(spill|fill|write_total|read_total)_bytes=(\d+)")
_COUNTED = {*Traffic._fields}


def _traffic(log: str, graphs: Sequence[Graph]) -> dict[str, Traffic]:
    """Signature -> traffic. The log names each graph, and sums it up before it names the next."""
    found: dict[str, dict[str, int]] = {}
    name = ""
    for line in log.splitlines():
        if begun := _GRAPH.search(line):
            name = begun[1]
        elif count := _BYTES.search(line):
            found.setdefault(name, {})[count[1].removesuffix("_total")] = int(count[2])
    unknown = [graph.name for graph in graphs if set(found.get(graph.name, ())) != _COUNTED]
    if unknown:
        raise RuntimeError(f"the compiler's log has no DDR summary of {', '.join(unknown)}")
    return {graph.signature: Traffic(**found[graph.name]) for graph in graphs}


@contextmanager
def _new_file(target: Path) -> Iterator[Path]:
    """A file to write beside `target` that takes its name where the body succeeds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        yield part
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
