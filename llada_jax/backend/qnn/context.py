"""Compiled .tflite files: the QNN context binaries in them, and the emulator that runs these."""

import ctypes
import importlib.util
import mmap
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from llada_jax.config import require


class Soc(NamedTuple):
    """A system on a chip, in the numbers by which QNN knows it."""

    htp_arch: int  # version of the Hexagon NPU
    soc_model: int


SOCS: Mapping[str, Soc] = {
    "SM8550": Soc(htp_arch=73, soc_model=43),
    "SM8650": Soc(htp_arch=75, soc_model=57),
    "SM8750": Soc(htp_arch=79, soc_model=69),
    "SM8850": Soc(htp_arch=81, soc_model=87),
}
"""Snapdragon 8 Gen 2, 8 Gen 3, 8 Elite and 8 Elite Gen 5."""


class Tensor(NamedTuple):
    """An input or output of a graph. With a scale, value = scale * (stored - zero_point)."""

    argument: str  # its name in the signature
    name: str  # its name in the graph
    shape: tuple[int, ...]
    dtype: np.dtype
    scale: float | None
    zero_point: int


class Graph(NamedTuple):
    """A signature as the NPU runs it; arguments on which nothing depends are left out."""

    signature: str
    name: str  # within its context
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class Context(NamedTuple):
    """A QNN context binary: graphs for one SoC with their weights."""

    soc: str
    graphs: tuple[Graph, ...]
    binary: memoryview  # of the file, which may be larger than the memory


DISPATCH = "DISPATCH_OP"
"""The op by which LiteRT hands a compiled graph to the NPU."""

_PACKAGES = ("ai_edge_litert", "ai_edge_quantizer", "onnx", "onnxruntime", "onnxruntime_qnn")
_GLIBC = (2, 35)


def require_qnn() -> None:
    """Raise RuntimeError where QNN has no libraries, ImportError without the extra 'qnn'."""
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


def check_soc(soc: str) -> None:
    """Raise ValueError for a SoC that is not in `SOCS`."""
    require(soc in SOCS, f"soc is {soc!r}; allowed: {', '.join(SOCS)}")


def extract_contexts(compiled: str | PathLike[str]) -> tuple[Context, ...]:
    """The context binaries in a .tflite from `compile_contexts`. It makes one for all signatures.

    Raises ImportError without the extra, ValueError for a file that is something else.
    """
    require_qnn()
    from flatbuffers import flexbuffers

    model, raw = read_tflite(Path(compiled))
    graphs: dict[tuple[int, int], list[Graph]] = {}
    for signature, subgraph in signatures(model):
        ops = [op_name(model, operator) for operator in subgraph.operators]
        require(ops == [DISPATCH], f"{compiled} has ops that are not compiled for an NPU")
        (operator,) = subgraph.operators
        options = flexbuffers.GetRoot(bytes(operator.customOptions)).AsMap.Value
        graph = Graph(
            signature.signatureKey.decode(),
            options["name"],
            _tensors(subgraph, signature.inputs, operator.inputs),
            _tensors(subgraph, signature.outputs, operator.outputs),
        )
        where = options["bytecode_offset"], options["bytecode_size"]
        graphs.setdefault(where, []).append(graph)
    soc = _stamped_soc(model)
    check_soc(soc)
    return tuple(
        Context(soc, tuple(members), memoryview(raw)[offset : offset + size])
        for (offset, size), members in graphs.items()
    )


def read_tflite(path: Path) -> tuple[Any, mmap.mmap]:
    """A .tflite as the schema's objects, and its bytes; weights stay on disk until they are used.

    Raises ValueError for a file of another kind.
    """
    from ai_edge_litert.schema_py_generated import ModelT

    with path.open("rb") as file:
        head = file.read(8)
        require(head[4:] == b"TFL3", f"{path} is no .tflite file")
        raw = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return ModelT.InitFromPackedBuf(raw, 0), raw


def signatures(model: Any) -> Iterator[tuple[Any, Any]]:
    """Each signature of a model with its subgraph."""
    for signature in model.signatureDefs or ():
        yield signature, model.subgraphs[signature.subgraphIndex]


def op_name(model: Any, operator: Any) -> str:
    """Such as FULLY_CONNECTED, or the name of a custom op."""
    from ai_edge_litert.schema_py_generated import BuiltinOperator

    code = model.operatorCodes[operator.opcodeIndex]
    if code.customCode:
        return code.customCode.decode()
    # Old files have the code in a field of eight bits.
    return _name_in(BuiltinOperator, max(code.builtinCode, code.deprecatedBuiltinCode))


def _name_in(enumeration: type, value: int) -> str:
    return next(name for name, number in vars(enumeration).items() if number == value)


def _tensors(subgraph: Any, arguments: Any, used: Any) -> tuple[Tensor, ...]:
    return tuple(
        _tensor(argument.name.decode(), subgraph.tensors[argument.tensorIndex])
        for argument in arguments
        if argument.tensorIndex in used
    )


def _tensor(argument: str, tensor: Any) -> Tensor:
    from ai_edge_litert.schema_py_generated import TensorType

    name, shape = tensor.name.decode(), tuple(map(int, tensor.shape))
    dtype = np.dtype(_name_in(TensorType, tensor.type).lower())
    ranges = tensor.quantization
    if ranges is None or ranges.scale is None:
        return Tensor(argument, name, shape, dtype, None, 0)
    return Tensor(argument, name, shape, dtype, float(ranges.scale[0]), int(ranges.zeroPoint[0]))


def _stamped_soc(model: Any) -> str:
    """The SoC in LiteRT's stamp, which is two fields of one length: maker and model."""
    stamps = [entry for entry in model.metadata or () if entry.name == b"LiteRtStamp"]
    require(len(stamps) == 1, "the .tflite file lacks LiteRT's stamp")
    stamp = bytes(model.buffers[stamps[0].buffer].data)
    return stamp[len(stamp) // 2 :].rstrip(b"\0").decode()


class Emulator:
    """The signatures of a compiled .tflite file on QNN's emulator of the NPU.

    It runs the context binaries themselves, so numbers are those of the NPU's float16 and integers.
    How long it takes says nothing about the NPU.
    """

    def __init__(self, compiled: str | PathLike[str]) -> None:
        """Load every signature, each with a context of its own.

        Raises ImportError without the extra, ValueError for a file that is not compiled,
        RuntimeError for one that the emulator does not load: weights shared among signatures.
        """
        self._graphs: dict[str, Graph] = {}
        self._sessions: dict[str, Any] = {}
        contexts = extract_contexts(compiled)
        with tempfile.TemporaryDirectory() as folder, silenced():
            for context in contexts:
                Path(folder, "context.bin").write_bytes(context.binary)
                for graph in context.graphs:
                    model = Path(folder, f"{graph.name}.onnx")
                    model.write_bytes(_wrapped(graph, "context.bin"))
                    if len(context.graphs) > 1 and not self._graphs:
                        _try_to_load(model, context.soc, compiled)
                    self._graphs[graph.signature] = graph
                    self._sessions[graph.signature] = _session(model, context.soc)

    @property
    def graphs(self) -> Mapping[str, Graph]:
        """By signature."""
        return self._graphs

    def run(self, signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run a signature: its outputs by name, of its inputs by name, all of them float32.

        Where the graph itself takes or gives integers, these are converted by its scales. Inputs
        on which nothing depends may be left out. Raises ValueError for what does not fit.
        """
        require(
            signature in self._graphs,
            f"signature is {signature!r}; allowed: {', '.join(self._graphs)}",
        )
        graph = self._graphs[signature]
        missing = [tensor.argument for tensor in graph.inputs if tensor.argument not in inputs]
        require(not missing, f"signature {signature!r} lacks inputs: {', '.join(missing)}")
        feed = {tensor.name: _stored(tensor, inputs[tensor.argument]) for tensor in graph.inputs}
        results = self._sessions[signature].run([tensor.name for tensor in graph.outputs], feed)
        return {
            tensor.argument: _value(tensor, result)
            for tensor, result in zip(graph.outputs, results, strict=True)
        }


def _stored(tensor: Tensor, value: np.ndarray) -> np.ndarray:
    value = np.asarray(value)
    require(
        value.shape == tensor.shape,
        f"input {tensor.argument!r} has shape {value.shape}; needed: {tensor.shape}",
    )
    if tensor.scale is None:
        return np.ascontiguousarray(value, tensor.dtype)
    limits = np.iinfo(tensor.dtype)
    steps = np.rint(value / np.float32(tensor.scale)) + tensor.zero_point
    return np.clip(steps, limits.min, limits.max).astype(tensor.dtype)


def _value(tensor: Tensor, stored: np.ndarray) -> np.ndarray:
    if tensor.scale is None:
        return stored
    return (stored.astype(np.float32) - tensor.zero_point) * np.float32(tensor.scale)


def _wrapped(graph: Graph, binary: str) -> bytes:
    """An ONNX model that is one graph of a context binary in the file of that name beside it."""
    from onnx import helper

    def described(tensors: tuple[Tensor, ...]) -> list[Any]:
        return [
            helper.make_tensor_value_info(
                tensor.name, helper.np_dtype_to_tensor_dtype(tensor.dtype), tensor.shape
            )
            for tensor in tensors
        ]

    node = helper.make_node(
        "EPContext",
        [tensor.name for tensor in graph.inputs],
        [tensor.name for tensor in graph.outputs],
        name=graph.name,  # the provider looks the graph up by this name
        domain="com.microsoft",
        main_context=1,
        embed_mode=0,
        ep_cache_context=binary,
        partition_name=graph.name,
        source="QNN",
    )
    wrapped = helper.make_graph([node], "step", described(graph.inputs), described(graph.outputs))
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(wrapped, opset_imports=versions, ir_version=10)
    return model.SerializeToString()


def _session(model: str | Path, soc: str) -> Any:
    """An ONNX Runtime session on the emulator; what the emulator does not take is an error."""
    import onnxruntime
    import onnxruntime_qnn

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    provider = {
        "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
        "soc_model": str(SOCS[soc].soc_model),
    }
    options.add_provider_for_devices(_devices(), provider)
    try:
        return onnxruntime.InferenceSession(str(model), options)
    except Exception as error:  # its own classes have no other base
        raise RuntimeError(f"the emulator does not load this context: {error}") from error


@cache
def _devices() -> list[Any]:
    """Those of QNN's provider, which a process can register only once."""
    import onnxruntime
    import onnxruntime_qnn

    name = onnxruntime_qnn.get_ep_name()
    if all(device.ep_name != name for device in onnxruntime.get_ep_devices()):
        onnxruntime.register_execution_provider_library(name, onnxruntime_qnn.get_library_path())
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]


def _try_to_load(model: Path, soc: str, compiled: str | PathLike[str]) -> None:
    """Load a model in a process of its own, because QNN 2.50 ends the process where it cannot."""
    code = f"import sys, {__name__} as context; context._session(*sys.argv[1:])"
    finished = subprocess.run(
        [sys.executable, "-c", code, str(model), soc],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
    )
    if finished.returncode < 0:
        raise RuntimeError(
            f"the emulator crashes on {compiled}, as it does on weights that several signatures "
            "share; compile with weight_sharing=False to emulate"
        )


@contextmanager
def silenced() -> Iterator[None]:
    """Keep what libraries print and warn in the body; where it fails, the error carries the end."""
    sys.stdout.flush()
    sys.stderr.flush()
    said = StringIO()
    with tempfile.TemporaryFile() as log, warnings.catch_warnings(action="ignore"):
        kept = {number: os.dup(number) for number in (1, 2)}
        try:
            for number in kept:
                os.dup2(log.fileno(), number)
            with redirect_stdout(said), redirect_stderr(said):
                yield
        except Exception as error:
            _flush_c()
            log.seek(0)
            printed = said.getvalue() + log.read().decode(errors="replace")
            error.add_note("\n".join(printed.splitlines()[-20:]))
            raise
        finally:
            _flush_c()
            for number, original in kept.items():
                os.dup2(original, number)
                os.close(original)


def _flush_c() -> None:
    """Write out what C code has printed so far."""
    ctypes.CDLL(None).fflush(None)
