"""Reads the parameters of a checkpoint into the parameter tree, in the requested dtype.

Tensors are read in small pieces of rows, converted or quantized, and written into their final
memory, so that a model of any size needs little memory beyond its parameters. On a mesh,
`ArrayParts` holds only the parts of an array that belong to this process's devices, and rows that
no part needs are skipped in the file.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, Sharding
from tqdm import tqdm

from llada_jax.checkpoint.sources import Checkpoint, ParamSource, StoredTensor
from llada_jax.config import require
from llada_jax.model.mesh import require_divides, shardings
from llada_jax.model.params import ModelParams, abstract_params
from llada_jax.model.quantize import INT4_GROUP, Bits, QuantArray, dequantize, quantize

Dtype = Literal[None, "float32", "bfloat16", "int8", "int4"]
_SquareSums = dict[str, np.ndarray]
"""By kind of block: the sum of squared errors from quantizing again, and of squared values."""
_BITS: Mapping[str | None, Bits] = {"int8": 8, "int4": 4}
_ROUTING = ("router", "selection_bias")
_PIECE_ELEMENTS = 1 << 18
_ALIGNMENT = 64
_PROGRESS_BYTES = 1 << 30
_NARROW = np.dtype(ml_dtypes.bfloat16)
"""Dtype of parameters that stay floats in a quantized or bfloat16 model."""


def read_params(
    checkpoint: Checkpoint, dtype: str | None, experts: bool = True, mesh: Mesh | None = None
) -> ModelParams:
    """Reads the parameter tree. With `experts=False`, the matrices of routed experts are None.

    In addition to the parameters, one piece of a tensor is in memory at a time, and on devices
    other than the CPU one leaf. On a mesh, each process reads the rows of its devices. If blocks of
    integers are quantized again, the error is reported on standard error.

    Raises ValueError, before anything is read, if int4 groups do not divide the inputs of a matrix,
    or the mesh does not divide a parameter.
    """
    sources, stored = checkpoint.sources, checkpoint.stored
    if dtype == "int4":
        _check_int4_groups(sources)
    if mesh is not None:
        require_divides(checkpoint.config, mesh, dtype)
    embedding_dtype = stored[sources[0].tensors[0]].dtype
    assert embedding_dtype is not None  # `checked` has refused other kinds
    width = {None: embedding_dtype, "float32": np.dtype(np.float32)}.get(dtype, _NARROW)
    wanted = [source for source in sources if experts or len(source.spec.shape) < 3]
    total = sum(
        stored[name].row_bytes * source.part[0] for source in wanted for name in source.tensors
    )
    leaves: list[Any] = []
    errors: _SquareSums = {}
    name = checkpoint.location.name
    options = {
        "unit": "B",
        "unit_scale": True,
        "mininterval": 1,
        "disable": total < _PROGRESS_BYTES,
    }
    with tqdm(total=total, desc=name, **options) as bar:
        for source in sources:
            if source not in wanted:
                leaves.append(None)
                continue
            bits = _BITS.get(dtype) if source.spec.quantizable else None
            kept = kept_dtype(source.last_name, stored[source.tensors[0]].dtype, width)
            leaf = _read_leaf(source, checkpoint, kept, bits, mesh, bar, errors)
            leaves.append(jax.block_until_ready(leaf))
    if errors:
        tqdm.write(f"{name} as {dtype}: {_error_summary(errors)}", file=sys.stderr)
    return jax.tree.unflatten(jax.tree.structure(abstract_params(checkpoint.config)), leaves)


def _check_int4_groups(sources: Sequence[ParamSource]) -> None:
    for source in sources:
        require(
            not source.spec.quantizable or source.spec.shape[-1] % INT4_GROUP == 0,
            f"dtype is 'int4', but {source.tensors[0]} has {source.spec.shape[-1]} inputs; "
            f"allowed: a multiple of {INT4_GROUP}",
        )


def kept_dtype(name: str, stored: np.dtype | None, width: np.dtype) -> np.dtype:
    """Returns the dtype of a float parameter: `width`, or float32 for routing stored as float32."""
    # `route` computes in float32, and a selection bias rounded to bfloat16 selects other experts.
    return np.dtype(np.float32) if name in _ROUTING and stored == np.float32 else width


def _read_leaf(
    source: ParamSource,
    checkpoint: Checkpoint,
    dtype: np.dtype,
    bits: Bits | None,
    mesh: Mesh | None,
    bar: tqdm,
    errors: _SquareSums,
) -> jax.Array | QuantArray:
    shape, (n_rows, *_) = source.spec.shape, source.part
    sharding = None if mesh is None else shardings(source.spec, mesh, bits and f"int{bits}")
    if bits is None:
        arrays = [ArrayParts(shape, dtype, sharding)]
    else:
        groups = 1 if bits == 8 else shape[-1] // INT4_GROUP
        values_sharding, scale_sharding = sharding or (None, None)
        integers = np.dtype(np.int8 if bits == 8 else ml_dtypes.int4)
        scale = ArrayParts((*shape[:-1], groups), np.dtype(np.float32), scale_sharding)
        arrays = [ArrayParts(shape, integers, values_sharding), scale]
    order = checkpoint.row_order(source)
    for index, name in enumerate(source.tensors):
        tensor, tensor_start = checkpoint.stored[name], index * n_rows
        start, stop = arrays[0].rows_within(tensor_start, tensor_start + n_rows)
        if order is not None and stop > start:  # its rows may be anywhere in the tensor
            start, stop = tensor_start, tensor_start + n_rows
        bar.update((n_rows - stop + start) * tensor.row_bytes)
        first = source.start - tensor_start
        as_stored = tensor.dtype == dtype and bits is order is tensor.blocks is None
        memory = arrays[0].memory(start, stop) if as_stored else None
        for raw in tensor.pieces(first + start, first + stop, _PIECE_ELEMENTS, memory):
            rows = range(start, start + len(raw))
            if order is not None:
                rows = tensor_start + order[start - tensor_start :][: len(raw)]
            for target, part in zip(arrays, _decoded(tensor, raw, bits, errors), strict=True):
                if memory is None:
                    target.write(rows, part.reshape(len(raw), -1))
            start += len(raw)
            bar.update(raw.nbytes)
    leaves = [array.on_devices() for array in arrays]
    return leaves[0] if bits is None else QuantArray(*leaves)


def _error_summary(errors: _SquareSums) -> str:
    """Returns a sentence with the relative error (root mean square) of each kind of block."""
    shares = {kind: np.sqrt(e / max(v, 1e-30)) for kind, (e, v) in errors.items()}
    of_kinds = ", ".join(f"{kind} by {share:.2%}" for kind, share in shares.items())
    return f"rounding anew moves weights of {of_kinds} of their size (root mean square)"


def _decoded(
    tensor: StoredTensor, raw: np.ndarray, bits: Bits | None, errors: _SquareSums
) -> Sequence[Any]:
    """Converts raw rows to one array of floats, or to integers and their scales."""
    if bits == 4 and tensor.int4 is not None:
        return tensor.decode_int4(raw)
    numbers = tensor.decode(raw)
    if bits is None:
        return [numbers]
    rounded = quantize(numbers, bits)
    if tensor.blocks is not None:
        stored = QuantArray(*map(np.asarray, rounded))  # pyright: ignore
        error = np.asarray(dequantize(stored, np.float32)) - numbers
        sums = np.array([np.square(error).sum(), np.square(numbers).sum()], np.float64)
        errors[tensor.kind] = errors.get(tensor.kind, 0) + sums
    return rounded


class _Part(NamedTuple):
    """A rectangle of an array that is seen as a matrix [rows, last axis], or [elements, 1]."""

    rows: slice
    columns: slice
    buffer: np.ndarray


class ArrayParts:
    """Host memory for the parts of an array on this process's devices, filled row by row.

    Replicas of a part share their memory.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, sharding: Sharding | None) -> None:
        """Allocates the parts under a sharding; with None, one part for the default device."""
        self._shape, self._sharding = shape, sharding
        indices: Any = [(slice(None),) * len(shape)]
        if sharding is not None:
            indices = sharding.addressable_devices_indices_map(shape).values()
        self._parts: dict[str, _Part] = {}
        for index in indices:
            if str(index) not in self._parts:
                self._parts[str(index)] = _part(shape, dtype, index)

    def rows_within(self, start: int, stop: int) -> tuple[int, int]:
        """Returns the smallest range that has all rows from `start` to `stop` of any part."""
        ranges = [
            (max(start, part.rows.start), min(stop, part.rows.stop))
            for part in self._parts.values()
        ]
        ranges = [(first, last) for first, last in ranges if first < last]
        if not ranges:
            return start, start
        return min(first for first, _ in ranges), max(last for _, last in ranges)

    def write(self, rows: range | np.ndarray, numbers: np.ndarray) -> None:
        """Writes full rows [rows, columns]; `rows` has their indices in the array."""
        for part_rows, columns, buffer in self._parts.values():
            flat, first = buffer.reshape(part_rows.stop - part_rows.start, -1), part_rows.start
            if isinstance(rows, range):
                start, stop = max(rows.start, first), min(rows.stop, part_rows.stop)
                values = numbers[start - rows.start : max(start, stop) - rows.start, columns]
                flat[start - first : start - first + len(values)] = values
            else:
                inside = (rows >= first) & (rows < part_rows.stop)
                flat[rows[inside] - first] = numbers[inside, columns]

    def memory(self, start: int, stop: int) -> np.ndarray | None:
        """Returns the memory of rows `start` to `stop`, uint8 [rows, bytes of a row], or None if
        no single part contains all of them."""
        (rows, columns, buffer), *others = self._parts.values()
        flat = buffer.reshape(rows.stop - rows.start, -1)
        whole = columns == slice(0, self._shape[-1]) or len(self._shape) == 1
        if others or not whole or start < rows.start or stop > rows.stop:
            return None
        return flat[start - rows.start : stop - rows.start].view(np.uint8)

    def on_devices(self) -> jax.Array:
        """Returns the JAX array. On a CPU it uses the memory of the parts without a copy."""
        if self._sharding is None:
            (part,) = self._parts.values()
            return jax.device_put(part.buffer)
        parts = self._parts
        return jax.make_array_from_callback(
            self._shape, self._sharding, lambda index: parts[str(index)].buffer
        )


def _part(shape: tuple[int, ...], dtype: np.dtype, index: tuple[slice, ...]) -> _Part:
    """Allocates a part. Only the first and the last axis can be split."""
    bounds = [axis.indices(size)[:2] for axis, size in zip(index, shape, strict=True)]
    per_first = math.prod(shape[1:-1])
    (start, stop), columns = bounds[0], bounds[-1] if len(shape) > 1 else (0, 1)
    buffer = _empty(tuple(last - first for first, last in bounds), dtype)
    return _Part(slice(start * per_first, stop * per_first), slice(*columns), buffer)


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns `np.empty` at an aligned address, which JAX uses on a CPU without a copy."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)
