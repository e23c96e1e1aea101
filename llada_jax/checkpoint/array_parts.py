"""An array that is filled row by row in host memory, and only with what devices here hold."""

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

_ALIGNMENT = 64


class _Part(NamedTuple):
    """A rectangle of the array as rows of its last axis; of a vector, as rows of one number."""

    rows: slice
    columns: slice
    buffer: np.ndarray


class ArrayParts:
    """The parts of an array that this process's devices hold; parts that are equal once."""

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
