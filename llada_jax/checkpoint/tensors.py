"""Reading a checkpoint's parameters piece by piece into the tree, in the dtype that is wanted."""

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
_Added = dict[str, np.ndarray]
"""By kind of block, the squares of what is lost where integers are rounded anew, and of all."""
_BITS: Mapping[str | None, Bits] = {"int8": 8, "int4": 4}
_ROUTING = ("router", "selection_bias")
_PIECE_ELEMENTS = 1 << 18
_ALIGNMENT = 64
_PROGRESS_BYTES = 1 << 30
_NARROW = np.dtype(ml_dtypes.bfloat16)
"""The float that goes with quantized matrices, and with other floats where it is asked for."""


def read_params(
    checkpoint: Checkpoint, dtype: str | None, experts: bool = True, mesh: Mesh | None = None
) -> ModelParams:
    """Reads the parameter tree, in the order of its leaves; without `experts`, None stands for the
    matrices of routed ones. Says on standard error what rounding adds to blocks of integers.

    Beyond the parameters themselves it holds one piece of a tensor at a time (on devices other than
    the CPU, one leaf as well). On a mesh it reads the rows that this process's devices hold. Raises
    ValueError before it reads where int4 has no whole groups, or the mesh does not divide.
    """
    sources, stored = checkpoint.sources, checkpoint.stored
    if dtype == "int4":
        _check_int4_groups(sources)
    if mesh is not None:
        require_divides(checkpoint.config, mesh, dtype)
    of_embedding = stored[sources[0].tensors[0]].dtype
    assert of_embedding is not None  # a kind that can be read: it was checked
    width = {None: of_embedding, "float32": np.dtype(np.float32)}.get(dtype, _NARROW)
    read = [each for each in sources if experts or len(each.spec.shape) < 3]
    total = sum(stored[name].row_bytes * each.part[0] for each in read for name in each.tensors)
    leaves: list[Any] = []
    added: _Added = {}
    name = checkpoint.location.name
    about = {"unit": "B", "unit_scale": True, "mininterval": 1, "disable": total < _PROGRESS_BYTES}
    with tqdm(total=total, desc=name, **about) as bar:
        for source in sources:
            if source not in read:
                leaves.append(None)
                continue
            bits = _BITS.get(dtype) if source.spec.quantizable else None
            kept = kept_dtype(source.last_name, stored[source.tensors[0]].dtype, width)
            leaf = _read(source, checkpoint, kept, bits, mesh, bar, added)
            leaves.append(jax.block_until_ready(leaf))
    if added:
        tqdm.write(f"{name} as {dtype}: {_moved(added)}", file=sys.stderr)
    return jax.tree.unflatten(jax.tree.structure(abstract_params(checkpoint.config)), leaves)


def _check_int4_groups(sources: Sequence[ParamSource]) -> None:
    for source in sources:
        require(
            not source.spec.quantizable or source.spec.shape[-1] % INT4_GROUP == 0,
            f"dtype is 'int4', but {source.tensors[0]} has {source.spec.shape[-1]} inputs; "
            f"allowed: a multiple of {INT4_GROUP}",
        )


def kept_dtype(name: str, found: np.dtype | None, width: np.dtype) -> np.dtype:
    """Returns the float of a parameter `found` as one, in a model whose others are of `width`."""
    # `route` computes in float32, and a selection bias rounded to bfloat16 takes other experts.
    return np.dtype(np.float32) if name in _ROUTING and found == np.float32 else width


def _read(
    source: ParamSource,
    checkpoint: Checkpoint,
    dtype: np.dtype,
    bits: Bits | None,
    mesh: Mesh | None,
    bar: tqdm,
    added: _Added,
) -> jax.Array | QuantArray:
    shape, (n_rows, *_) = source.spec.shape, source.part
    where = None if mesh is None else shardings(source.spec, mesh, bits and f"int{bits}")
    if bits is None:
        arrays = [ArrayParts(shape, dtype, where)]
    else:
        groups = 1 if bits == 8 else shape[-1] // INT4_GROUP
        of_values, of_scale = where or (None, None)
        integers = np.dtype(np.int8 if bits == 8 else ml_dtypes.int4)
        scale = ArrayParts((*shape[:-1], groups), np.dtype(np.float32), of_scale)
        arrays = [ArrayParts(shape, integers, of_values), scale]
    order = checkpoint.row_order(source)
    for index, name in enumerate(source.tensors):
        tensor, before = checkpoint.stored[name], index * n_rows
        start, stop = arrays[0].rows_within(before, before + n_rows)
        if order is not None and stop > start:
            start, stop = before, before + n_rows
        bar.update((n_rows - stop + start) * tensor.row_bytes)
        first = source.start - before
        as_stored = tensor.dtype == dtype and bits is order is tensor.blocks is None
        memory = arrays[0].memory(start, stop) if as_stored else None
        for raw in tensor.pieces(first + start, first + stop, _PIECE_ELEMENTS, memory):
            rows = range(start, start + len(raw))
            if order is not None:
                rows = before + order[start - before :][: len(raw)]
            for target, part in zip(arrays, _decoded(tensor, raw, bits, added), strict=True):
                if memory is None:
                    target.write(rows, part.reshape(len(raw), -1))
            start += len(raw)
            bar.update(raw.nbytes)
    leaves = [array.on_devices() for array in arrays]
    return leaves[0] if bits is None else QuantArray(*leaves)


def _moved(added: _Added) -> str:
    """Says the root mean square of what rounding anew adds over that of the values, by kind."""
    shares = {kind: np.sqrt(e / max(v, 1e-30)) for kind, (e, v) in added.items()}
    of_kinds = ", ".join(f"{kind} by {share:.2%}" for kind, share in shares.items())
    return f"rounding anew moves weights of {of_kinds} of their size (root mean square)"


def _decoded(
    tensor: StoredTensor, raw: np.ndarray, bits: Bits | None, added: _Added
) -> Sequence[Any]:
    """Returns rows as floats, or as integers and their scales."""
    if bits == 4 and tensor.int4 is not None:
        return tensor.decode_int4(raw)
    numbers = tensor.decode(raw)
    if bits is None:
        return [numbers]
    rounded = quantize(numbers, bits)
    if tensor.blocks is not None:
        stored = QuantArray(*map(np.asarray, rounded))  # pyright: ignore
        lost = np.asarray(dequantize(stored, np.float32)) - numbers
        sums = np.array([np.square(lost).sum(), np.square(numbers).sum()], np.float64)
        added[tensor.kind] = added.get(tensor.kind, 0) + sums
    return rounded


class _Part(NamedTuple):
    """A rectangle of the array as rows of its last axis; of a vector, as rows of one number."""

    rows: slice
    columns: slice
    buffer: np.ndarray


class ArrayParts:
    """An array that is filled row by row in host memory, and only with the parts that this
    process's devices hold; parts that are equal once."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, where: Sharding | None) -> None:
        """Takes where the array will lie; None: whole, on the default device."""
        self._shape, self._where = shape, where
        indices: Any = [(slice(None),) * len(shape)]
        if where is not None:
            indices = where.addressable_devices_indices_map(shape).values()
        self._parts: dict[str, _Part] = {}
        for index in indices:
            if str(index) not in self._parts:
                self._parts[str(index)] = _part(shape, dtype, index)

    def rows_within(self, start: int, stop: int) -> tuple[int, int]:
        """Returns the rows from `start` to `stop` that any part has, and what lies between them."""
        rows = [each.rows for each in self._parts.values()]
        found = [(max(start, each.start), min(stop, each.stop)) for each in rows]
        found = [each for each in found if each[0] < each[1]]
        if not found:
            return start, start
        return min(first for first, _ in found), max(last for _, last in found)

    def write(self, rows: range | np.ndarray, numbers: np.ndarray) -> None:
        """Writes whole rows [rows, columns] of the array, by their places in it."""
        for held, columns, buffer in self._parts.values():
            flat, first = buffer.reshape(held.stop - held.start, -1), held.start
            if isinstance(rows, range):
                start, stop = max(rows.start, first), min(rows.stop, held.stop)
                own = numbers[start - rows.start : max(start, stop) - rows.start, columns]
                flat[start - first : start - first + len(own)] = own
            else:
                inside = (rows >= first) & (rows < held.stop)
                flat[rows[inside] - first] = numbers[inside, columns]

    def memory(self, start: int, stop: int) -> np.ndarray | None:
        """Returns the memory of rows from `start` to `stop`, uint8 [rows, bytes of a row]; None
        where no single part has them whole."""
        (held, columns, buffer), *others = self._parts.values()
        flat = buffer.reshape(held.stop - held.start, -1)
        whole = columns == slice(0, self._shape[-1]) or len(self._shape) == 1
        if others or not whole or start < held.start or stop > held.stop:
            return None
        return flat[start - held.start : stop - held.start].view(np.uint8)

    def on_devices(self) -> jax.Array:
        """Returns the array; what was written becomes its memory where a device can share it."""
        if self._where is None:
            (part,) = self._parts.values()
            return jax.device_put(part.buffer)
        parts = self._parts
        return jax.make_array_from_callback(
            self._shape, self._where, lambda index: parts[str(index)].buffer
        )


def _part(shape: tuple[int, ...], dtype: np.dtype, index: tuple[slice, ...]) -> _Part:
    """Returns an empty part. All axes between the first and the last one are whole."""
    bounds = [each.indices(size)[:2] for each, size in zip(index, shape, strict=True)]
    per_first = math.prod(shape[1:-1])
    (start, stop), columns = bounds[0], bounds[-1] if len(shape) > 1 else (0, 1)
    buffer = _empty(tuple(last - first for first, last in bounds), dtype)
    return _Part(slice(start * per_first, stop * per_first), slice(*columns), buffer)


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns `np.empty` at an address that JAX takes over on a CPU, instead of copying."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)
