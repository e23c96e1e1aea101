"""Reads QNN context binaries from compiled `.tflite` files: graphs, tensors, chips.

LiteRT's compiler stores one context binary for all signatures in the file, and replaces each
signature's graph by a single custom operator, whose options have the graph's name and the binary's
offset. The emulator and the manifest need the tensors with their scales, which are read here.
"""

import importlib.util
import mmap
import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llada_jax.config import Soc, require, require_choice

SOCS: Mapping[str, int] = {"SM8550": 43, "SM8650": 57, "SM8750": 69, "SM8850": 87}
"""QNN's model numbers of Snapdragon 8 Gen 2, 8 Gen 3, 8 Elite and 8 Elite Gen 5."""


class Tensor(NamedTuple):
    """An input or output of a graph. With a scale, value = scale * (stored - zero_point)."""

    argument: str  # its name in the signature
    name: str  # its name in the graph
    shape: tuple[int, ...]
    dtype: np.dtype
    scale: float | None
    zero_point: int


class NpuGraph(NamedTuple):
    """A signature as the NPU runs it; inputs without effect on the outputs are left out."""

    signature: str
    name: str  # within its context
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class Context(NamedTuple):
    """A QNN context binary: graphs for one SoC with their weights."""

    soc: str
    graphs: tuple[NpuGraph, ...]
    binary: memoryview  # of the mapped file, which may be larger than memory


_DISPATCH = "DISPATCH_OP"
"""The operator with which LiteRT passes a compiled graph to the NPU."""

_PACKAGES = ("ai_edge_litert", "ai_edge_quantizer", "onnx", "onnxruntime", "onnxruntime_qnn")
_GLIBC = (2, 35)


def require_qnn() -> None:
    """Raises RuntimeError if QNN has no libraries for this system, ImportError without the extra
    'qnn'."""
    libc, version = platform.libc_ver()
    recent = libc == "glibc" and tuple(map(int, version.split("."))) >= _GLIBC
    if not recent or (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise RuntimeError(
            "QNN's compiler and emulator need Linux on x86-64 with glibc 2.35 or newer; "
            f"this is {platform.system()} on {platform.machine()} with {libc or 'no glibc'} "
            f"{version}".rstrip()
        )
    missing = [package for package in _PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise ImportError(f"no {', '.join(missing)}; install with: pip install 'llada_jax[qnn]'")


def read_context(compiled: Path) -> Context:
    """Returns the only context binary of a compiled .tflite file.

    Raises ImportError without the extra, ValueError for a file of another kind.
    """
    require_qnn()
    from flatbuffers import flexbuffers

    model, raw = read_tflite(compiled)
    graphs, locations = [], set()
    for signature, subgraph in signatures(model):
        ops = [op_name(model, operator) for operator in subgraph.operators]
        require(ops == [_DISPATCH], f"{compiled} has ops that are not compiled for an NPU")
        (operator,) = subgraph.operators
        options = flexbuffers.GetRoot(bytes(operator.customOptions)).AsMap.Value
        locations.add((options["bytecode_offset"], options["bytecode_size"]))
        name = signature.signatureKey.decode()
        inputs = _tensors(subgraph, signature.inputs, operator.inputs)
        outputs = _tensors(subgraph, signature.outputs, operator.outputs)
        graphs.append(NpuGraph(name, options["name"], inputs, outputs))
    require(len(locations) == 1, f"{compiled} has {len(locations)} contexts; allowed: one")
    ((offset, size),) = locations
    soc = _stamped_soc(model)
    require_choice("soc", soc, Soc)
    return Context(soc, tuple(graphs), memoryview(raw)[offset : offset + size])


def operators_outside_npu(compiled: Path) -> Iterator[str]:
    """Yields signatures that are not one partition of the NPU, with the other operators."""
    model, _ = read_tflite(compiled)
    for signature, subgraph in signatures(model):
        ops = Counter(op_name(model, operator) for operator in subgraph.operators)
        partitions = ops.pop(_DISPATCH, 0)
        if ops or partitions != 1:
            left = ", ".join(f"{count} {name}" for name, count in sorted(ops.items())) or "nothing"
            name = signature.signatureKey.decode()
            yield f"  signature {name!r}: {partitions} partitions, outside: {left}"


def read_tflite(path: Path) -> tuple[Any, mmap.mmap]:
    """Returns a .tflite file as the schema's objects, and its bytes, mapped from disk.

    Raises ValueError for a file of another kind.
    """
    from ai_edge_litert.schema_py_generated import ModelT

    with path.open("rb") as file:
        head = file.read(8)
        require(head[4:] == b"TFL3", f"{path} is no .tflite file")
        raw = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return ModelT.InitFromPackedBuf(raw, 0), raw


def signatures(model: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each signature of a model with its subgraph."""
    for signature in model.signatureDefs or ():
        yield signature, model.subgraphs[signature.subgraphIndex]


def op_name(model: Any, operator: Any) -> str:
    """Returns an operator's name, such as FULLY_CONNECTED, or the name of a custom one."""
    from ai_edge_litert.schema_py_generated import BuiltinOperator

    code = model.operatorCodes[operator.opcodeIndex]
    if code.customCode:
        return code.customCode.decode()
    # Old files have the code in an 8-bit field.
    return _name_in(BuiltinOperator, max(code.builtinCode, code.deprecatedBuiltinCode))


def _name_in(enumeration: type, value: int) -> str:
    return next(name for name, number in vars(enumeration).items() if number == value)


def _tensors(subgraph: Any, arguments: Any, used: Any) -> tuple[Tensor, ...]:
    from ai_edge_litert.schema_py_generated import TensorType

    tensors = []
    for argument in arguments:
        if argument.tensorIndex in used:
            tensor = subgraph.tensors[argument.tensorIndex]
            dtype = np.dtype(_name_in(TensorType, tensor.type).lower())
            scale, zero_point = None, 0
            if tensor.quantization is not None and tensor.quantization.scale is not None:
                scale = float(tensor.quantization.scale[0])
                zero_point = int(tensor.quantization.zeroPoint[0])
            names, shape = (argument.name.decode(), tensor.name.decode()), map(int, tensor.shape)
            tensors.append(Tensor(*names, tuple(shape), dtype, scale, zero_point))
    return tuple(tensors)


def _stamped_soc(model: Any) -> str:
    """Returns the SoC in LiteRT's stamp, two fields of equal length: manufacturer and model."""
    stamps = [entry for entry in model.metadata or () if entry.name == b"LiteRtStamp"]
    require(len(stamps) == 1, "the .tflite file lacks LiteRT's stamp")
    stamp = bytes(model.buffers[stamps[0].buffer].data)
    return stamp[len(stamp) // 2 :].rstrip(b"\0").decode()
