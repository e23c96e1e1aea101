"""A file with a model's routed experts, each of which is read separately.

Reads bypass the system's page cache if possible (O_DIRECT), and the file is not mapped, because
pages of either would use memory that is not part of the budget.
"""

import json
import os
import struct
import weakref
import zlib
from contextlib import suppress
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import ml_dtypes
import numpy as np

from llada_jax.config import ModelConfig, require, require_choice
from llada_jax.io import atomic
from llada_jax.model.architecture.parameters import is_routed
from llada_jax.model.params import FeedForward
from llada_jax.model.quantize import INT4_GROUP, Bits, QuantArray, dequantize, quantize

ExpertDtype = Literal["float32", "bfloat16", "int8", "int4"]
PAGE = 4096
"""Experts begin and end at multiples of it, as direct reads require."""
_ALIGNMENT = 64
_MAGIC = b"experts1"
_TAIL = struct.Struct("<QI8s")
_BITS: dict[str, Bits] = {"int8": 8, "int4": 4}
_ARRAYS: dict[str, list[tuple[type, int | None]]] = {
    "float32": [(np.float32, 1)],
    "bfloat16": [(ml_dtypes.bfloat16, 1)],
    "int8": [(np.int8, 1), (np.float32, None)],
    "int4": [(np.uint8, 2), (np.float32, INT4_GROUP)],
}
"""By dtype, the arrays of a matrix (values, and scales if quantized): element type, and inputs of a
row per element; None means all inputs."""


class ExpertShape(NamedTuple):
    """The properties that determine the layout of the file."""

    n_layers: int
    """Number of layers with routed experts."""
    n_experts: int
    width: int
    expert_width: int
    dtype: ExpertDtype

    @classmethod
    def of(cls, config: ModelConfig, dtype: str) -> "ExpertShape":
        """Returns the shape of a model's experts. Raises ValueError for a model without experts, an
        unknown dtype, and for int4 if a row does not divide into groups."""
        require_choice("dtype", dtype, ExpertDtype)
        moe = config.moe
        require(
            moe is not None,
            f"{config.family} has no routed experts to look at; allowed: a mixture of experts",
        )
        assert moe is not None
        for inputs in (config.width, moe.expert_width):
            require(
                dtype != "int4" or inputs % INT4_GROUP == 0,
                f"dtype is 'int4', but experts have {inputs} inputs; allowed: a multiple of "
                f"{INT4_GROUP}",
            )
        routed = config.n_layers - moe.first_layer
        return cls(routed, moe.n_experts, config.width, moe.expert_width, dtype)  # pyright: ignore

    @property
    def expert_bytes(self) -> int:
        """The size of an expert, in whole pages."""
        return self.record().itemsize

    def record(self) -> np.dtype:
        """Returns the layout of an expert: the arrays of `gate`, `up` and `down`. A byte of int4
        has a value of a row's first half in the low bits and one of its second half in the high
        bits, both with a bias of 8."""
        matrices = [(self.expert_width, self.width)] * 2 + [(self.width, self.expert_width)]
        formats, offsets, end = [], [], 0
        for (rows, inputs), (kind, per) in product(matrices, _ARRAYS[self.dtype]):
            formats.append(np.dtype((kind, (rows, inputs // (per or inputs)))))
            offsets.append(end + -end % _ALIGNMENT)
            end = offsets[-1] + formats[-1].itemsize
        names = [str(i) for i in range(len(formats))]
        size = end + -end % PAGE
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


def write_experts(
    path: Path, config: ModelConfig, weights: Any, dtype: str, fingerprint: str | None = None
) -> None:
    """Writes the routed experts of a model one after another, atomically; in memory is only one
    piece of the weights.

    `weights.rows(name)` yields the experts of a parameter [E, Out, In] in pieces, like a
    `Checkpoint`. They are quantized as in `load`; integers with the right format are kept.
    """
    shape = ExpertShape.of(config, dtype)
    record, sums = np.zeros((), shape.record()), []
    with atomic.new_file(path) as part, part.open("wb") as file:
        for layer in filter(partial(is_routed, config), range(config.n_layers)):
            names = [f"layers.{layer}.ffn.{name}" for name in FeedForward._fields]
            for pieces in zip(*map(weights.rows, names), strict=True):
                for expert in range(len(jax.tree.leaves(pieces)[0])):
                    matrices = [
                        jax.tree.map(lambda a, e=expert: np.asarray(a[e]), p) for p in pieces
                    ]
                    arrays = chain.from_iterable(_stored(matrix, dtype) for matrix in matrices)
                    for i, array in enumerate(arrays):
                        record[str(i)] = array
                    sums.append(zlib.crc32(record.tobytes()))
                    file.write(record.tobytes())
        require(
            len(sums) == shape.n_layers * shape.n_experts,
            f"the weights have {len(sums)} experts; allowed: {shape.n_layers * shape.n_experts}",
        )
        description = {"shape": shape._asdict(), "fingerprint": fingerprint, "crc32": sums}
        text = json.dumps(description).encode()
        file.write(text + _TAIL.pack(len(text), zlib.crc32(text), _MAGIC))


def _stored(piece: Any, dtype: str) -> list[np.ndarray]:
    """Returns the arrays of one matrix; floats are not converted here."""
    bits = _BITS.get(dtype)
    if isinstance(piece, QuantArray):
        groups = 1 if bits == 8 else piece.values.shape[-1] // INT4_GROUP
        if piece.values.dtype.name == dtype and piece.scale.shape[-1] == groups:
            return [_packed(np.asarray(piece.values)), np.asarray(piece.scale)]
        piece = np.asarray(dequantize(piece, np.float32))
    if bits is None:
        return [piece]
    values, scale = map(np.asarray, quantize(piece, bits))
    return [_packed(values), scale]


def _packed(values: np.ndarray) -> np.ndarray:
    if values.dtype == np.int8:
        return values
    biased = (values.astype(np.int8) + 8).view(np.uint8)
    first, second = np.split(biased, 2, axis=1)
    return first | second << 4


class ExpertFile:
    """An open file of experts. Each expert is checked when it is first read."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens a file of `write_experts`. Raises ValueError for a file that is something else,
        truncated or damaged."""
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"no file {path}")
        self.shape, description = _read_description(self.path)
        self._record = self.shape.record()
        self.fingerprint: str | None = description["fingerprint"]
        self._sums: list[int | None] = description["crc32"]
        self._descriptor = _open_direct(self.path)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, layer: int, expert: int, into: np.ndarray) -> None:
        """Reads an expert into `expert_bytes` bytes that begin at a page.

        Raises ValueError if the bytes are damaged.
        """
        number, size = layer * self.shape.n_experts + expert, self.shape.expert_bytes
        n_read = os.preadv(self._descriptor, [into], number * size)
        expected = self._sums[number]
        require(
            n_read == size and expected in (None, zlib.crc32(into)),
            f"{self.path}: expert {expert} of routed layer {layer} is damaged; allowed: the bytes "
            "that were written",
        )
        self._sums[number] = None  # checked

    def matrices(self, memory: np.ndarray) -> FeedForward:
        """Returns the matrices of an expert in memory, as JAX arrays that share the memory on a
        CPU. The values of int4 are the file's bytes."""
        arrays = jax.device_put(list(memory.view(self._record)[0]), may_alias=True)
        if self.shape.dtype in _BITS:
            arrays = [QuantArray(*pair) for pair in zip(arrays[::2], arrays[1::2], strict=True)]
        return FeedForward(*arrays)


def _open_direct(path: Path) -> int:
    """Opens a file for direct reads, or for ordinary ones if its file system has none."""
    with suppress(OSError):
        direct = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
        try:
            os.preadv(direct, [page_aligned(PAGE)], 0)
            return direct
        except OSError:
            os.close(direct)
    return os.open(path, os.O_RDONLY)


def _read_description(path: Path) -> tuple[ExpertShape, dict[str, Any]]:
    """Reads the shape and checksums, which are stored after the experts."""
    message = f"{path} is no file of experts, or is cut short or damaged"
    size = path.stat().st_size
    require(size > _TAIL.size, message)
    with path.open("rb") as file:
        file.seek(size - _TAIL.size)
        length, checksum, magic = _TAIL.unpack(file.read())
        require(magic == _MAGIC and length <= size - _TAIL.size, message)
        file.seek(size - _TAIL.size - length)
        text = file.read(length)
    require(zlib.crc32(text) == checksum, message)
    description = json.loads(text)
    shape = ExpertShape(**description["shape"])
    experts = shape.n_layers * shape.n_experts * shape.expert_bytes
    require(size == experts + length + _TAIL.size, message)
    return shape, description


def page_aligned(size: int) -> np.ndarray:
    """Returns bytes that begin at a page; the system allocates them when they are written."""
    memory = np.empty(size + PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    return memory[start : start + size]
