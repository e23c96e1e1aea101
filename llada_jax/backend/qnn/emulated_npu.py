"""Emulates a Snapdragon's NPU: steps are compiled for the phone and run by the vendor's emulator.

It is slow, and does not estimate a phone's speed. But the emulator runs the context binaries of
phones, so the results are numerically equal to the NPU's.
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
"""Few, because each takes seconds to compile; without 16, which is wrong with int16 activations
(see `qnn`)."""


class EmulatedNpu:
    """The backend. Each step becomes a separate context binary."""

    def __init__(
        self, soc: str = "SM8750", precision: str = "fp16", samples: Sequence[Inputs] = ()
    ):
        """`samples` are a recorder's inputs, for a16w8, a8w8 and a16w4.

        Raises ValueError for an unknown SoC or precision, or if samples are missing; ImportError or
        RuntimeError if the extra `qnn` is missing or cannot run.
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
        """By step: sizes, seconds, and the compiler's report of DRAM traffic."""

    def compile(self, steps: Sequence[Step], weights: Weights) -> dict[str, Executable]:
        return {step.name: self._compiled(step, weights) for step in steps}

    def _compiled(self, step: Step, weights: Weights) -> Executable:
        with tempfile.TemporaryDirectory() as folder:
            precision = self._phone.precision
            quantized = write_quantized(Path(folder), [step], weights, precision, self._samples)
            compilation = self.compiled[step.name] = compile_context(quantized, self._soc)
            return Emulator(compilation.context)


class Emulator:
    """A context with one graph on QNN's emulator of the NPU, as an `Executable`."""

    def __init__(self, context: Context) -> None:
        """Loads the graph. Raises ValueError for several, which crash the process in QNN 2.50."""
        count = len(context.graphs)
        require(count == 1, f"the context has {count} graphs; allowed: one")
        (self.graph,) = context.graphs
        with tempfile.TemporaryDirectory() as folder, silenced("QNN's emulator"):
            Path(folder, "context.bin").write_bytes(context.binary)
            model = Path(folder, "graph.onnx")
            model.write_bytes(epcontext_model(self.graph, "context.bin"))
            self._session = _session(model, context.soc)

    def allocate(self, name: str) -> np.ndarray:
        tensor = next(tensor for tensor in self.graph.inputs if tensor.argument == name)
        return np.zeros(tensor.shape, np.float32)

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns outputs by name for inputs by name, all float32.

        Integer inputs and outputs of the graph are converted with its scales. Inputs without effect
        on the outputs may be left out. Raises ValueError for missing inputs and wrong shapes.
        """
        graph = self.graph
        missing = [tensor.argument for tensor in graph.inputs if tensor.argument not in arrays]
        require(not missing, f"signature {graph.signature!r} lacks inputs: {', '.join(missing)}")
        feed = {tensor.name: _quantize(tensor, arrays[tensor.argument]) for tensor in graph.inputs}
        results = self._session.run([tensor.name for tensor in graph.outputs], feed)
        return {
            tensor.argument: _dequantize(tensor, result)
            for tensor, result in zip(graph.outputs, results, strict=True)
        }


def _quantize(tensor: Tensor, value: np.ndarray) -> np.ndarray:
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


def _dequantize(tensor: Tensor, stored: np.ndarray) -> np.ndarray:
    if tensor.scale is None:
        return stored
    return (stored.astype(np.float32) - tensor.zero_point) * np.float32(tensor.scale)


def epcontext_model(graph: NpuGraph, binary: str) -> bytes:
    """Returns an ONNX model with one graph of a context binary, a file in the same folder."""
    from onnx import helper

    def value_info(tensor: Tensor) -> Any:
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
    inputs, outputs = (list(map(value_info, tensors)) for tensors in (graph.inputs, graph.outputs))
    onnx_graph = helper.make_graph([node], "step", inputs, outputs)
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(onnx_graph, opset_imports=versions, ir_version=10)
    return model.SerializeToString()


def _session(model: Path, soc: str) -> Any:
    """Opens a session on the emulator. Raises RuntimeError if it does not accept the context."""
    import onnxruntime
    import onnxruntime_qnn

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    provider = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "soc_model": str(SOCS[soc])}
    options.add_provider_for_devices(_devices(), provider)
    try:
        return onnxruntime.InferenceSession(str(model), options)
    except Exception as error:  # onnxruntime's classes have no other common base
        raise RuntimeError(f"the emulator does not load this context: {error}") from error


@cache
def _devices() -> list[Any]:
    """Returns the devices of QNN's provider, which can be registered only once per process."""
    import onnxruntime
    import onnxruntime_qnn

    name = onnxruntime_qnn.get_ep_name()
    if all(device.ep_name != name for device in onnxruntime.get_ep_devices()):
        onnxruntime.register_execution_provider_library(name, onnxruntime_qnn.get_library_path())
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
