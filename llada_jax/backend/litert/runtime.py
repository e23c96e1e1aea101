"""Runs `.tflite` files on the CPU with Google's LiteRT (`CompiledModel`).

Inputs and outputs are NumPy arrays that share LiteRT's buffers. LiteRT's Python interface can only
copy, so the addresses of its buffers come from the C interface of the same library.
"""

import ctypes
import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary, finalize, ref

import numpy as np

from llada_jax.backend.litert import tflite
from llada_jax.backend.litert.install import litert_runtime
from llada_jax.backend.lower import check, lower
from llada_jax.backend.protocol import Executable, Step, Weights
from llada_jax.backend.resources import available_cores
from llada_jax.backend.silenced import silenced
from llada_jax.config import Quant

_CAPSULE = b"LiteRtTensorBuffer"
_POINTERS = {"float32": ctypes.c_float, "int32": ctypes.c_int32}


class LiteRT:
    """The backend. All files that it opens share host buffers, so the output of a step can be the
    input of another one without a copy."""

    def __init__(self, quant: Quant = "float32"):
        """Uses as many threads as this process has cores."""
        self._quant: Quant = quant
        self._runtime = litert_runtime()
        self._buffers = _HostBuffers()
        self._packed: WeakKeyDictionary[Weights, Path] = WeakKeyDictionary()

    def compile(self, steps: Sequence[Step], weights: Weights) -> dict[str, Executable]:
        """As `Backend.compile`. Steps with the same weights, compiled together or one after the
        other, share packed weights, in a temporary file as long as `weights` exists."""
        lowered = [lower(step, self._quant) for step in steps]
        for step in lowered:
            check(step, "litert")
        names = list(dict.fromkeys(name for step in lowered for name in step.weights))
        packed = self.packed_folder(weights) / sha256(repr(names).encode()).hexdigest()
        with tempfile.TemporaryDirectory() as folder:  # LiteRT keeps the file mapped
            path = Path(folder) / "steps.tflite"
            tflite.write(path, lowered, weights)
            return {**self.open(path, packed)}

    def packed_folder(self, weights: Weights) -> Path:
        """Returns the folder of the packed weights of a source: a file for each list of weights."""
        if weights not in self._packed:
            folder = tempfile.mkdtemp()
            finalize(weights, shutil.rmtree, folder, ignore_errors=True)  # also at the end
            self._packed[weights] = Path(folder)
        return self._packed[weights]

    def open(self, path: Path, packed: Path | None = None) -> dict[str, "_Signature"]:
        """Opens a `.tflite` file, and returns its executables by signature.

        `packed` is a file for the weights in the order of the CPU's kernels: the first opening
        writes it, later ones map it into memory and do not read the weights in `path`. It must
        belong to a file with the same weights in the same buffers, which LiteRT does not check.
        """
        runtime = self._runtime
        cpu = runtime.cpu_options.CpuOptions(
            num_threads=available_cores(), xnnpack_weight_cache_path=str(packed) if packed else ""
        )
        on_cpu = runtime.hardware_accelerator.HardwareAccelerator.CPU
        options = runtime.options.Options(hardware_accelerators=on_cpu, cpu_options=cpu)
        with silenced(f"LiteRT, opening {path.name},"):
            model = runtime.compiled_model.CompiledModel.from_file(
                str(path), options=options, environment=_environment()
            )
            signatures = model.get_signature_list()
        return {name: _Signature(model, name, io, self._buffers) for name, io in signatures.items()}


@cache
def _environment() -> Any:
    """Returns the process's only environment. LiteRT writes to stderr whenever it makes one, and it
    makes a second one when a buffer is first inspected, so that is done here as well."""
    runtime = litert_runtime()
    with silenced("LiteRT"):
        memory = np.zeros(16, np.float32)
        runtime.tensor_buffer.TensorBuffer.create_from_host_memory(memory).get_tensor_details()
        return runtime.environment.Environment.create()


class _HostBuffers:
    """Finds the NumPy array of a LiteRT buffer, and the buffer of such an array."""

    def __init__(self) -> None:
        folder = Path(litert_runtime().__file__).parent
        library = ctypes.CDLL(str(folder / "libLiteRt.so"))
        self._host_memory = library.LiteRtGetTensorBufferHostMemory
        self._pointer = ctypes.pythonapi.PyCapsule_GetPointer
        self._pointer.restype = ctypes.c_void_p
        self._pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        self._owners: WeakValueDictionary[Any, Any] = WeakValueDictionary()

    def array(self, buffer: Any, details: Mapping[str, Any]) -> np.ndarray:
        """Returns the buffer's memory as an array, which keeps the buffer alive."""
        address = ctypes.c_void_p()
        handle = ctypes.c_void_p(self._pointer(buffer.capsule, _CAPSULE))
        status = self._host_memory(handle, ctypes.byref(address))
        if status or not address.value:
            raise RuntimeError(f"LiteRT gives no host memory for a buffer (status {status})")
        kind = _POINTERS[details["dtype"]] * math.prod(details["shape"])
        memory = kind.from_address(address.value)
        memory.owner = buffer
        array = np.frombuffer(memory, memory._type_).reshape(details["shape"])
        self._owners[_key(array)] = buffer
        return array

    def owner(self, array: np.ndarray) -> Any | None:
        """Returns the buffer with the memory of this array, or None for other arrays."""
        return self._owners.get(_key(array))


def _key(array: np.ndarray) -> tuple[Any, ...]:
    """Identifies a buffer's whole array; a view may begin at the same address."""
    return array.ctypes.data, array.shape, array.strides, array.dtype


class _Signature:
    """One signature of a file, as an `Executable`."""

    def __init__(self, model: Any, name: str, io: Mapping[str, Sequence[str]], host: _HostBuffers):
        self._model, self._name, self._buffers = model, name, host
        self.inputs = list(io["inputs"])
        self._copies: dict[str, np.ndarray] = {}
        self._last: dict[str, tuple[ref[np.ndarray], ref[Any]]] = {}
        """By input: its array in the last run, and the array's own buffer. An array keeps its
        buffer alive."""
        self._outputs = {o: model.create_output_buffer_by_name(name, o) for o in io["outputs"]}
        details = model.get_output_tensor_details(name)
        self._views = {o: host.array(buffer, details[o]) for o, buffer in self._outputs.items()}
        self._details = model.get_input_tensor_details(name)

    def allocate(self, name: str) -> np.ndarray:
        buffer = self._model.create_input_buffer_by_name(self._name, name)
        array = self._buffers.array(buffer, self._details[name])
        array[...] = 0
        return array

    def run(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        inputs = {name: self._buffer_of(name, arrays[name]) for name in self.inputs}
        self._model.run_by_name(self._name, inputs, self._outputs)
        return self._views

    def _buffer_of(self, name: str, array: np.ndarray) -> Any:
        """Returns the array's own buffer, or one to which the array is copied."""
        last = self._last.get(name)
        if last is not None and last[0]() is array:  # the caches, in most runs
            return last[1]()
        owner = self._buffers.owner(array)
        if owner is not None:
            self._last[name] = ref(array), ref(owner)
            return owner
        if name not in self._copies:
            self._copies[name] = self.allocate(name)
        self._copies[name][...] = array
        return self._buffers.owner(self._copies[name])
