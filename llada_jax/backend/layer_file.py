"""A file with the weights of a model's layers, each layer in one piece, to be mapped into memory.

Floats are stored in float32, which the activations of a session have; quantized weights as the
integers and scales that they are.
"""

import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from llada_jax import atomic
from llada_jax.backend.protocol import Weights
from llada_jax.backend.weights import whole
from llada_jax.config import ModelConfig, require
from llada_jax.model.params import named_specs
from llada_jax.model.quantize import QuantArray

ALIGNMENT = 64
"""Of each array, in bytes: XLA takes it where it lies."""
PAGE = mmap.PAGESIZE
_PIECE = 256 * PAGE


class StoredArray(NamedTuple):
    """One array of a layer."""

    name: str
    """Of the parameter, `layers.3.attention.query`, with `.values` or `.scale` where quantized."""
    offset: int
    """In bytes, from the start of the layer."""
    shape: tuple[int, ...]
    dtype: np.dtype


class StoredLayer(NamedTuple):
    """Where a layer lies in the file."""

    offset: int
    size: int
    """Bytes, in whole pages."""
    arrays: tuple[StoredArray, ...]

    def views(self, memory: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the arrays in some bytes that hold the layer."""
        return {
            name: np.frombuffer(memory, dtype, math.prod(shape), offset).reshape(shape)
            for name, offset, shape, dtype in self.arrays
        }


def write_layers(path: Path, config: ModelConfig, weights: Weights) -> "LayerFile":
    """Writes all layers, tensor by tensor; the file has its name once it is complete."""
    names = list(named_specs(config))
    layers = []
    with atomic.new_file(path) as part, part.open("wb") as file:
        for index in range(config.n_layers):
            start = file.tell()
            mine = [name for name in names if name.startswith(f"layers.{index}.")]
            arrays = tuple(_write(file, start, mine, weights))
            file.write(b"\0" * (-file.tell() % PAGE))
            layers.append(StoredLayer(start, file.tell() - start, arrays))
    return LayerFile(path, layers)


def _write(file: Any, start: int, names: Sequence[str], weights: Weights) -> Iterator[StoredArray]:
    for name in names:
        leaf = whole(weights.rows(name))
        parts = {name: leaf}
        if isinstance(leaf, QuantArray):
            parts = {f"{name}.values": leaf.values, f"{name}.scale": leaf.scale}
        for key, array in parts.items():
            if not key.endswith(".values"):
                array = array.astype(np.float32)
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            yield StoredArray(key, file.tell() - start, array.shape, array.dtype)
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


class LayerFile:
    """The file, mapped into memory. Pages are given back once they were read, so that beside the
    layers that somebody holds hardly any of it takes memory."""

    def __init__(self, path: Path, layers: Sequence[StoredLayer]):
        self.layers = tuple(layers)
        end = max(layer.offset + layer.size for layer in layers)
        size = path.stat().st_size
        require(size == end, f"{path} has {size} bytes; allowed: {end}, as it was written")
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self, index: int, into: np.ndarray) -> None:
        """Copies a layer into some bytes."""
        layer = self.layers[index]
        for start in range(0, layer.size, _PIECE):
            size, offset = min(_PIECE, layer.size - start), layer.offset + start
            into[start : start + size] = np.frombuffer(self._memory, np.uint8, size, offset)
            self._memory.madvise(mmap.MADV_DONTNEED, offset, size)

    def close(self) -> None:
        """Gives the mapping back; reading is over."""
        self._memory.close()


def weights_of(layer: StoredLayer, memory: np.ndarray) -> Mapping[str, Any]:
    """Returns the parameters of a layer, by name, as JAX arrays that share the memory."""
    found: dict[str, Any] = {}
    for name, view in layer.views(memory).items():
        array = jax.device_put(view, may_alias=True)
        parameter, _, part = name.rpartition(".")
        if part in QuantArray._fields:
            found.setdefault(parameter, {})[part] = array
        else:
            found[name] = array
    return {
        name: QuantArray(**leaf) if isinstance(leaf, dict) else leaf for name, leaf in found.items()
    }
