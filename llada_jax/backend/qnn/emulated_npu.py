"""A Snapdragon's NPU on this machine: compiled for the phone, run by the vendor's emulator.

Slow, and without a word about a phone's speed; but the numbers are the NPU's own: the emulator runs
the context binaries of phones.
"""

import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from llada_jax.backend.protocol import Executable, Inputs, Step, Weights
from llada_jax.backend.qnn.compiler import Compilation, compile_context
from llada_jax.backend.qnn.context import SOCS, Context, NpuGraph, Tensor, require_qnn
from llada_jax.backend.qnn.quantizer import write_quantized
from llada_jax.backend.silenced import silenced
from llada_jax.config import STATIC_PRECISIONS, PhoneConfig, require

ROW_BUCKETS = (32, 64, 96, 128)
"""Few, because each compiles for seconds; 16 rows are wrong with int16 activations (see `qnn`)."""


class EmulatedNpu:
    """The backend. Each step becomes a context binary of its own."""

    def __init__(
        self, soc: str = "SM8750", precision: str = "fp16", samples: Sequence[Inputs] = ()
    ):
        """Takes a recorder's inputs as `samples`, for a16w8, a8w8 and a16w4.

        Raises ValueError for an unknown SoC or precision, or where samples are needed; ImportError
        or RuntimeError where the extra `qnn` is missing or cannot run.
        """
        self._soc, self._phone = soc, PhoneConfig(socs=(soc,), precision=precision)  # pyright: ignore
        require(
            bool(samples) or precision not in STATIC_PRECISIONS,
            f"precision is {precision!r} without samples; allowed: samples of real forwards "
            "(llada_jax.backend.program.Recorder), or fp16 and int8 without",
        )
        require_qnn()
        self._samples = samples
        self.compiled: dict[str, Compilation] = {}
        """By step: sizes, seconds, and the compiler's account of DRAM traffic."""

    def compile(self, steps: Sequence[Step], weights: Weights) -> dict[str, Executable]:
        return {step.name: self._compiled(step, weights) for step in steps}

    def _compiled(self, step: Step, weights: Weights) -> Executable:
        with tempfile.TemporaryDirectory() as folder:
            precision = self._phone.precision
            quantized = write_quantized(Path(folder), [step], weights, precision, self._samples)
            made = self.compiled[step.name] = compile_context(quantized, self._soc)
            return Emulator(made.context)


class Emulator:
    """A context of one graph on QNN's emulator of the NPU: an `Executable`."""

    def __init__(self, context: Context) -> None:
        """Loads the graph. Raises ValueError for several, with which QNN 2.50 ends the process."""
        count = len(context.graphs)
        require(count == 1, f"the context has {count} graphs; allowed: one")
        (self.graph,) = context.graphs
        with tempfile.TemporaryDirectory() as folder, silenced("QNN's emulator"):
            Path(folder, "context.bin").write_bytes(context.binary)
            model = Path(folder, "graph.onnx")
            model.write_bytes(_wrapped(self.graph, "context.bin"))
            self._session = _session(model, context.soc)

    def allocate(self, name: str) -> np.ndarray:
        tensor = next(each for each in self.graph.inputs if each.argument == name)
        return np.zeros(tensor.shape, np.float32)

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns outputs by name for inputs by name, all float32.

        Where the graph itself takes or gives integers, these are converted by its scales. Inputs
        on which nothing depends may be left out. Raises ValueError for what does not fit.
        """
        graph = self.graph
        missing = [tensor.argument for tensor in graph.inputs if tensor.argument not in arrays]
        require(not missing, f"signature {graph.signature!r} lacks inputs: {', '.join(missing)}")
        feed = {tensor.name: _stored(tensor, arrays[tensor.argument]) for tensor in graph.inputs}
        results = self._session.run([tensor.name for tensor in graph.outputs], feed)
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


def _wrapped(graph: NpuGraph, binary: str) -> bytes:
    """Returns an ONNX model that is one graph of the context binary in a file of its folder."""
    from onnx import helper

    def described(tensor: Tensor) -> Any:
        dtype = helper.np_dtype_to_tensor_dtype(tensor.dtype)
        return helper.make_tensor_value_info(tensor.name, dtype, tensor.shape)

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
    inputs, outputs = (list(map(described, each)) for each in (graph.inputs, graph.outputs))
    wrapped = helper.make_graph([node], "step", inputs, outputs)
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(wrapped, opset_imports=versions, ir_version=10)
    return model.SerializeToString()


def _session(model: Path, soc: str) -> Any:
    """Opens a session on the emulator. Raises RuntimeError for what the emulator does not take."""
    import onnxruntime
    import onnxruntime_qnn

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    provider = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": str(SOCS[soc])}
    options.add_provider_for_devices(_devices(), provider)
    try:
        return onnxruntime.InferenceSession(str(model), options)
    except Exception as error:  # its own classes have no other base
        raise RuntimeError(f"the emulator does not load this context: {error}") from error


@cache
def _devices() -> list[Any]:
    """Returns the devices of QNN's provider, which a process can register only once."""
    import onnxruntime
    import onnxruntime_qnn

    name = onnxruntime_qnn.get_ep_name()
    if all(device.ep_name != name for device in onnxruntime.get_ep_devices()):
        onnxruntime.register_execution_provider_library(name, onnxruntime_qnn.get_library_path())
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
