"""A file with the routed experts of a model, each in one piece that is read by itself.

Reading bypasses the system's cache where it can (O_DIRECT), and is no mapping: pages of either
would take memory that no budget counts.
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
"""Experts begin and end at multiples of it, as direct reads want it."""
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
"""Of a matrix, its values and the scales of quantized ones: their type, and for how many of a row's
inputs a number stands; None for all of them."""


class ExpertShape(NamedTuple):
    """What decides where each expert lies in the file."""

    n_layers: int
    """Layers with routed experts."""
    n_experts: int
    width: int
    expert_width: int
    dtype: ExpertDtype

    @classmethod
    def of(cls, config: ModelConfig, dtype: str) -> "ExpertShape":
        """Returns the shape of a model's experts. Raises ValueError for a model without any, for an
        unknown dtype, and where int4 has no whole groups."""
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
        """Returns the bytes of an expert, in whole pages."""
        return self.record().itemsize

    def record(self) -> np.dtype:
        """Returns an expert as the file has it: the arrays of `gate`, `up` and `down`. Of int4, a
        byte has one of a row's first half in its low bits and one of its second half, both biased
        by 8."""
        matrices = [(self.expert_width, self.width)] * 2 + [(self.width, self.expert_width)]
        formats, offsets, end = [], [], 0
        for (rows, inputs), (kind, per) in product(matrices, _ARRAYS[self.dtype]):
            formats.append(np.dtype((kind, (rows, inputs // (per or inputs)))))
            offsets.append(_up(end, _ALIGNMENT))
            end = offsets[-1] + formats[-1].itemsize
        names = [str(i) for i in range(len(formats))]
        size = _up(end, PAGE)
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


def write_experts(
    path: Path, config: ModelConfig, weights: Any, dtype: str, fingerprint: str | None = None
) -> None:
    """Writes the routed experts of a model, one after another; the file has its name once it is
    complete. Beside one piece of the weights it takes no memory.

    `weights.rows(name)` gives the experts of a parameter [E, Out, In] in pieces, as a `Checkpoint`
    does. They are quantized as `load` quantizes; integers in the wanted form are kept.
    """
    shape = ExpertShape.of(config, dtype)
    record, sums = np.zeros((), shape.record()), []
    with atomic.new_file(path) as part, part.open("wb") as file:
        for layer in filter(partial(is_routed, config), range(config.n_layers)):
            names = [f"layers.{layer}.ffn.{name}" for name in FeedForward._fields]
            for pieces in zip(*map(weights.rows, names), strict=True):
                for expert in range(len(jax.tree.leaves(pieces)[0])):
                    one = [jax.tree.map(lambda a, e=expert: np.asarray(a[e]), p) for p in pieces]
                    arrays = chain.from_iterable(_stored(each, dtype) for each in one)
                    for i, array in enumerate(arrays):
                        record[str(i)] = array
                    sums.append(zlib.crc32(record.tobytes()))
                    file.write(record.tobytes())
        require(
            len(sums) == shape.n_layers * shape.n_experts,
            f"the weights have {len(sums)} experts; allowed: {shape.n_layers * shape.n_experts}",
        )
        described = {"shape": shape._asdict(), "fingerprint": fingerprint, "crc32": sums}
        text = json.dumps(described).encode()
        file.write(text + _TAIL.pack(len(text), zlib.crc32(text), _MAGIC))


def _stored(piece: Any, dtype: str) -> list[np.ndarray]:
    """Returns the arrays of one matrix, floats as they are."""
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
    """The file, open for reading. Every expert is checked when it is read first."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens a file that `write_experts` wrote. Raises ValueError for any other one, and for one
        that is cut short or damaged."""
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"no file {path}")
        self.shape, described = _described(self.path)
        self._record = self.shape.record()
        self.fingerprint: str | None = described["fingerprint"]
        self._sums: list[int | None] = described["crc32"]
        self._descriptor = _opened(self.path)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, layer: int, expert: int, into: np.ndarray) -> None:
        """Reads an expert into `expert_bytes` bytes that begin at a page.

        Raises ValueError where its bytes are not those that were written.
        """
        number, size = layer * self.shape.n_experts + expert, self.shape.expert_bytes
        found = os.preadv(self._descriptor, [into], number * size)
        expected = self._sums[number]
        require(
            found == size and expected in (None, zlib.crc32(into)),
            f"{self.path}: expert {expert} of routed layer {layer} is damaged; allowed: the bytes "
            "that were written",
        )
        self._sums[number] = None

    def matrices(self, memory: np.ndarray) -> FeedForward:
        """Returns the matrices of an expert in some bytes, as JAX arrays that share the memory on a
        CPU. Of int4, the values are the file's bytes."""
        arrays = jax.device_put(list(memory.view(self._record)[0]), may_alias=True)
        if self.shape.dtype in _BITS:
            arrays = [QuantArray(*pair) for pair in zip(arrays[::2], arrays[1::2], strict=True)]
        return FeedForward(*arrays)


def _opened(path: Path) -> int:
    """Opens a file for direct reads, or for others where its file system has none."""
    with suppress(OSError):
        direct = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
        try:
            os.preadv(direct, [page_aligned(PAGE)], 0)
            return direct
        except OSError:
            os.close(direct)
    return os.open(path, os.O_RDONLY)


def _described(path: Path) -> tuple[ExpertShape, dict[str, Any]]:
    """Reads what stands behind the experts."""
    wrong = f"{path} is no file of experts, or is cut short or damaged"
    size = path.stat().st_size
    require(size > _TAIL.size, wrong)
    with path.open("rb") as file:
        file.seek(size - _TAIL.size)
        length, checksum, magic = _TAIL.unpack(file.read())
        require(magic == _MAGIC and length <= size - _TAIL.size, wrong)
        file.seek(size - _TAIL.size - length)
        text = file.read(length)
    require(zlib.crc32(text) == checksum, wrong)
    described = json.loads(text)
    shape = ExpertShape(**described["shape"])
    experts = shape.n_layers * shape.n_experts * shape.expert_bytes
    require(size == experts + length + _TAIL.size, wrong)
    return shape, described


def page_aligned(size: int) -> np.ndarray:
    """Returns bytes that begin at a page; they take memory as they are written."""
    memory = np.empty(size + PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    return memory[start : start + size]


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
