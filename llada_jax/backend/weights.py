"""How weights are stored in an executable file: numbers and scales, piece by piece.

A storage format (`Quant`) decides for each weight between float32, int8 with a scale per row, and
int4 with a scale per row or block. Integers of an already quantized model are kept if they have the
format, otherwise weights are dequantized and rounded again. Everything works on pieces of a few
rows, so that exports of large models need little memory.
"""

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np

from llada_jax.backend.protocol import Weights
from llada_jax.config import Quant, require
from llada_jax.lowered import LoweredWeight
from llada_jax.model.params import ModelParams, parameter_name
from llada_jax.model.quantize import QuantArray, dequantize, quantize

_BITS_AND_GROUP: Mapping[str, tuple[int, int | None]] = {
    "int8": (8, None),
    "int4": (4, None),
    "int4_block32": (4, 32),
    "int4_block128": (4, 128),
}
_PIECE_ELEMENTS = 1 << 22  # of a piece in memory, which bounds the memory of an export


def quant_of(params: ModelParams) -> Quant:
    """Returns the storage format of loaded parameters: the integers they have, or float32."""
    query = params.layers[0].attention.query
    if not isinstance(query, QuantArray):
        return "float32"
    return "int8" if query.values.dtype == np.int8 else "int4_block32"


def storage_spec(name: str, shape: tuple[int, ...], quant: Quant) -> LoweredWeight:
    """Returns the storage of one weight in a file. Vectors stay float32; head and embedding are
    int8 in all integer formats.

    Raises ValueError if a row is not a multiple of the group.
    """
    if quant == "float32" or len(shape) < 2:
        return LoweredWeight(shape, 32)
    if name.startswith(("head", "embedding")):
        return LoweredWeight(shape, 8)
    bits, group = _BITS_AND_GROUP[quant]
    require(
        group is None or shape[-1] % group == 0,
        f"quant is {quant!r}, but {name} has {shape[-1]} inputs; allowed: a multiple of {group}",
    )
    return LoweredWeight(shape, bits, group)


class StoredPiece(NamedTuple):
    """Some rows of a weight, as a file stores them."""

    numbers: np.ndarray
    """float32, int8, or int4 packed two to a byte (the first one in the low bits)."""
    scale: np.ndarray | None
    """float32 [rows, groups]."""


def store(pieces: Iterator[Any], spec: LoweredWeight) -> Iterator[StoredPiece]:
    """Converts pieces of a weight to the file's format, a few rows at a time."""
    step = max(1, _PIECE_ELEMENTS // spec.shape[-1])
    for piece in pieces:
        for start in range(0, len(jax.tree.leaves(piece)[0]), step):
            yield _stored(jax.tree.map(itemgetter(slice(start, start + step)), piece), spec)


def _stored(piece: Any, spec: LoweredWeight) -> StoredPiece:
    """Converts a piece; integers that already have the format are used unchanged."""
    groups = spec.shape[-1] // spec.group if spec.group else 1
    number = {8: np.int8, 4: ml_dtypes.int4}.get(spec.bits)
    is_quantized = isinstance(piece, QuantArray) and piece.values.dtype == number
    if not (is_quantized and piece.scale.shape[-1] == groups):
        wide = dequantize(piece, np.float32) if isinstance(piece, QuantArray) else piece
        if spec.bits == 32:
            return StoredPiece(np.ascontiguousarray(wide, np.float32), None)
        bits = 8 if spec.bits == 8 else 4
        piece = quantize(np.asarray(wide), bits, spec.group or spec.shape[-1])
    values, scale = np.asarray(piece.values), np.asarray(piece.scale, np.float32)
    return StoredPiece(pack_int4(values) if spec.bits == 4 else values, scale)


def restore(piece: StoredPiece, spec: LoweredWeight) -> np.ndarray:
    """Returns a stored piece as floats."""
    if piece.scale is None:
        return piece.numbers
    values = unpack_int4(piece.numbers) if spec.bits == 4 else piece.numbers
    # TFLite keeps the scales of blocks in float16.
    scale = piece.scale.astype(np.float16).astype(np.float32) if spec.group else piece.scale
    return np.asarray(dequantize(QuantArray(values, scale), np.float32))  # pyright: ignore


def unpack_int4(packed: np.ndarray) -> np.ndarray:
    """Undoes `pack_int4`, to int8."""
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.int8)
    return ((nibbles ^ 8) - 8).reshape(*packed.shape[:-1], -1)


def pack_int4(values: np.ndarray) -> np.ndarray:
    """Packs int4 [..., n] into uint8 [..., n / 2]."""
    nibbles = values.view(np.uint8) & 15
    return nibbles[..., ::2] | (nibbles[..., 1::2] << 4)


def pieces_of(weights: Weights, name: str) -> Iterator[Any]:
    """Yields a step's weight by name, which may be a range of rows: `head[0:8192]`."""
    parameter, _, part = name.partition("[")
    start, stop = map(int, part.rstrip("]").split(":")) if part else (0, None)
    return weights.rows(parameter, start, stop)


def join_pieces(pieces: Iterable[Any]) -> Any:
    """Joins the pieces of a weight, in NumPy."""
    return jax.tree.map(lambda *parts: np.concatenate(parts), *pieces)


class InMemory:
    """`Weights` of a model in memory."""

    def __init__(self, params: ModelParams):
        leaves = jax.tree.leaves_with_path(params, is_leaf=lambda x: isinstance(x, QuantArray))
        self._leaves = {parameter_name(path): leaf for path, leaf in leaves}

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        yield jax.tree.map(lambda array: np.asarray(array[start:stop]), self._leaves[name])

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a parameter."""
        return jax.tree.leaves(self._leaves[name])[0].shape
