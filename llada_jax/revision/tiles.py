"""Weights in the layout of the NPU's matrix unit: tiles of 32 inputs by 32 outputs.

This is how llada.cpp (arXiv 2606.13740, sections 2.2 and 4) stores its weights. A tile's rows are
inputs and its columns outputs. Two rows are interleaved (r0 c0, r1 c0, r0 c1, r1 c1, ...), and
tiles are in the order of the inner product: all tiles of one column of tiles, then the next.

In Q4_0 this is the order of nibbles: a byte has one output's weights for two neighbouring inputs,
the even one in the low bits, with a bias of 8 as in GGUF. A group is a column of a tile, 32 inputs
of one output, also as in GGUF, so repacking changes no integers. The 32 scales, in float16, follow
the nibbles. The paper does not specify the position of the scales, nor whether groups follow
columns or the interleaved order.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import ml_dtypes
import numpy as np
from jaxtyping import Float, UInt8

from llada_jax.config import require
from llada_jax.model.quantize import INT4_GROUP, QuantArray, quantize

TILE = INT4_GROUP
BIAS = 8
NIBBLE_BYTES = TILE * TILE // 2
Q4_0_BYTES = NIBBLE_BYTES + 2 * TILE
"""A tile in Q4_0: 512 bytes of nibbles, then 32 scales; 18 bytes for 32 weights."""
Kind = Literal["q4_0"]


@dataclass(frozen=True, eq=False)
class Tiles:
    """A weight [Out, In] in tiles, as packed by `pack_q4_0`. The array is contiguous, and the only
    copy of the weight."""

    blocks: UInt8[np.ndarray, "o i 576"]
    kind: ClassVar[Kind] = "q4_0"

    @property
    def shape(self) -> tuple[int, int]:
        """The weight's [Out, In]."""
        return self.blocks.shape[0] * TILE, self.blocks.shape[1] * TILE

    def columns(self, start: int, stop: int) -> "Tiles":
        """Returns a view of outputs `start` to `stop`, multiples of 32."""
        require(
            0 <= start < stop <= self.shape[0] and start % TILE == stop % TILE == 0,
            f"outputs {start} to {stop} of {self.shape[0]}; allowed: multiples of {TILE}",
        )
        return Tiles(self.blocks[start // TILE : stop // TILE])


def pack_q4_0(weight: QuantArray) -> Tiles:
    """Packs an int4 weight without loss. Raises ValueError for other shapes and dtypes, and for
    scales that are not float16 numbers."""
    values = np.asarray(weight.values)
    require(
        values.ndim == 2 and values.size > 0 and not any(size % TILE for size in values.shape),
        f"a weight of shape {values.shape} in tiles; allowed: [Out, In], multiples of {TILE}",
    )
    require(
        values.dtype == ml_dtypes.int4, f"a weight of {values.dtype} in Q4_0 tiles; allowed: int4"
    )
    out, inputs = values.shape
    scale = np.asarray(weight.scale)
    require(
        scale.shape == (out, inputs // TILE),
        f"int4 scales have shape {scale.shape}; allowed: one for {TILE} inputs, "
        f"{(out, inputs // TILE)}",
    )
    with np.errstate(over="ignore"):
        narrow = scale.astype(np.float16)
    inexact = narrow.astype(np.float32) != scale
    require(
        not inexact.any(),
        f"scale {scale[inexact][:1]} is no float16 number; allowed: float16 numbers",
    )
    biased = (values.astype(np.int8) + BIAS).astype(np.uint8)
    parts = biased.reshape(out // TILE, TILE, inputs // TILE, TILE // 2, 2)  # o column i pair row
    even, odd = parts.transpose(4, 0, 2, 3, 1).reshape(2, out // TILE, inputs // TILE, -1)
    blocks = np.empty((out // TILE, inputs // TILE, Q4_0_BYTES), np.uint8)
    blocks[..., :NIBBLE_BYTES] = even | odd << 4
    columns = narrow.reshape(out // TILE, TILE, -1).swapaxes(1, 2)
    blocks[..., NIBBLE_BYTES:] = np.ascontiguousarray(columns).view(np.uint8)
    return Tiles(blocks)


def quantize_q4_0(weight: Float[np.ndarray, "Out In"]) -> QuantArray:
    """Quantizes in groups of 32, with scales rounded to float16, as in Q4_0.

    Raises ValueError for a scale too large for float16.
    """
    values, wide = quantize(weight, bits=4)
    scale = np.asarray(wide)
    limit = np.finfo(np.float16).max
    require(
        bool((scale <= limit).all()),
        f"scale {scale.max()} is too large for Q4_0; allowed: up to {limit}",
    )
    rounded = scale.astype(np.float16).astype(np.float32)
    return QuantArray(values, rounded)  # pyright: ignore[reportArgumentType]
