"""Number formats of logits in HBM: float32, BF16, and MX blocks of 8 E4M3 numbers with an E8M0
scale.

MX (OCP Microscaling Formats, version 1.0): a block's scale is the power of two that brings its
largest magnitude to the element format's top binade; elements round to nearest even and saturate.
"""

from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from llada_jax.config import require, require_choice

LogitFormat = Literal["float32", "bfloat16", "mx_e4m3"]
Floats = NDArray[np.float32]

BLOCK = 8
_SCALE_BIAS = 127
_SLAB = 1 << 18
"""Numbers encoded at a time, so that temporaries stay in the CPU's cache."""
_ELEMENT = ml_dtypes.float8_e4m3fn
_FLOATS = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


def rounded(values: np.ndarray, format: str) -> Floats:
    """Rounds values to nearest even in a format, and returns them as float32."""
    with np.errstate(over="ignore"):
        return values.astype(_FLOATS[format], copy=False).astype(np.float32, copy=False)


def largest(format: str) -> float:
    """Returns the largest finite number of float32 or bfloat16."""
    return float(ml_dtypes.finfo(_FLOATS[format]).max)


def sanitized(values: Floats, format: str) -> Floats:
    """Replaces NaN by -inf and +inf by the largest number, as the engine does when it loads
    numbers.

    So a NaN logit is never predicted and has no probability, and one +inf has all of it.
    """
    top = np.float32(largest(format))
    return np.minimum(np.where(np.isnan(values), np.float32(-np.inf), values), top)


@dataclass(frozen=True)
class StoredLogits:
    """Rows of numbers [rows, columns] as stored in HBM, in the format's own type."""

    elements: np.ndarray
    scales: NDArray[np.uint8] | None = None
    """[rows, columns / 8] biased exponents, for MX formats."""

    def read(self, start: int, stop: int) -> Floats:
        """Returns rows as float32."""
        elements = self.elements[start:stop]
        if self.scales is None:
            return elements.astype(np.float32)
        codes = np.arange(256, dtype=np.uint8).view(_ELEMENT).astype(np.float32)
        values = codes[elements]
        scales = np.ldexp(np.float32(1), self.scales[start:stop].astype(np.int32) - _SCALE_BIAS)
        with np.errstate(over="ignore", invalid="ignore"):
            blocks = values.reshape(*scales.shape, BLOCK) * scales[..., None]
        return blocks.reshape(values.shape)


def bits_per_element(format: LogitFormat) -> float:
    """Returns the bits of HBM per logit, including its share of the scale."""
    return {"float32": 32.0, "bfloat16": 16.0}.get(format, 8 + 8 / BLOCK)


def store(values: Floats, format: LogitFormat) -> StoredLogits:
    """Stores rows [rows, columns] in a format. MX formats have blocks of 8 columns.

    NaN and -inf become NaN in MX elements, which have no infinities; the engine loads both as -inf.
    """
    require_choice("format", format, LogitFormat)
    if format in _FLOATS:
        return StoredLogits(values.astype(_FLOATS[format]))
    count, columns = values.shape
    require(columns % BLOCK == 0, f"{columns} columns; allowed in {format}: a multiple of {BLOCK}")
    elements = np.empty(values.shape, np.uint8)
    scales = np.empty((count, columns // BLOCK), np.uint8)
    slab = max(1, _SLAB // columns)
    for start in range(0, count, slab):
        rows = slice(start, start + slab)
        elements[rows], scales[rows] = _encode(values[rows].astype(np.float32))
    return StoredLogits(elements, scales)


def _encode(numbers: Floats) -> tuple[np.ndarray, np.ndarray]:
    """Returns the MX elements and scales of some rows."""
    info = ml_dtypes.finfo(_ELEMENT)
    top = np.float32(info.max)
    absent = np.isnan(numbers) | (numbers == -np.inf)
    blocks = np.where(absent, np.float32(0), numbers).reshape(len(numbers), -1, BLOCK)
    blocks = np.minimum(blocks, np.finfo(np.float32).max)
    _, exponent = np.frexp(np.abs(blocks).max(axis=-1))  # magnitude in [2**(e-1), 2**e)
    _, top_exponent = np.frexp(top)
    exponent = np.clip(exponent - top_exponent, -_SCALE_BIAS, 254 - _SCALE_BIAS)
    scaled = np.clip(np.ldexp(blocks, -exponent[..., None]), -top, top).reshape(numbers.shape)
    scaled[absent] = np.nan
    elements = scaled.astype(_ELEMENT).view(np.uint8)
    return elements, (exponent + _SCALE_BIAS).astype(np.uint8)
