"""Weights as the NPU's matrix unit takes them, tiles of 32 inputs by 32 outputs; rows times them.

llada.cpp (arXiv 2606.13740, §2.2 and §4) stores its weights so. A tile's rows are inputs, and its
columns are outputs; two rows are interleaved (r0 c0, r1 c0, r0 c1, r1 c1, ...), and tiles follow
each other in the order of the inner product: all of one column of tiles, then the next.

In Q4_0 that order holds for nibbles, so a byte has the weights of one output for two neighbouring
inputs, the even one low; integers are biased by 8, as in GGUF. A group is a column of a tile, 32
inputs of one output, as in GGUF too, so no integer changes on the way. The 32 scales, in float16,
follow the nibbles. The paper leaves both open: where its scales lie, and whether its groups follow
the columns or the interleaved order.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import ml_dtypes
import numpy as np
from jaxtyping import Float, UInt8

from llada_jax.config import require
from llada_jax.model.quantize import INT4_GROUP, QuantArray, quantize

TILE = INT4_GROUP
BIAS = 8
NIBBLE_BYTES = TILE * TILE // 2
Q4_0_BYTES = NIBBLE_BYTES + 2 * TILE
"""A tile in Q4_0: 512 bytes of nibbles, then 32 scales. 18 bytes for 32 weights."""
_CHUNKS_PER_THREAD = 4
"""So that a thread which the machine has slowed down gets less of the work."""
Kind = Literal["q4_0"]


@dataclass(frozen=True, eq=False)
class Tiles:
    """A weight [Out, In] in tiles, as `pack_q4_0` packs them.

    The array is contiguous, and the only copy.
    """

    blocks: UInt8[np.ndarray, "o i 576"]
    kind: ClassVar[Kind] = "q4_0"

    @property
    def shape(self) -> tuple[int, int]:
        """Gives the weight's [Out, In]."""
        return self.blocks.shape[0] * TILE, self.blocks.shape[1] * TILE

    def columns(self, start: int, stop: int) -> "Tiles":
        """Returns a view of outputs `start` to `stop`, multiples of 32."""
        require(
            0 <= start < stop <= self.shape[0] and start % TILE == stop % TILE == 0,
            f"outputs {start} to {stop} of {self.shape[0]}; allowed: multiples of {TILE}",
        )
        return Tiles(self.blocks[start // TILE : stop // TILE])


def pack_q4_0(weight: QuantArray) -> Tiles:
    """Packs an int4 weight without loss. Its scales must be float16 numbers."""
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
    """Quantizes in groups of 32, with scales rounded to float16, as Q4_0 holds them.

    Raises ValueError for a scale beyond float16.
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


class TileMultiplier:
    """`multiply(x, tiles)`: x times the weight transposed, as `linear` does, in float32.

    Weights are decoded where they lie, tile by tile in registers: beside the result there is a copy
    of `x` and nothing else. Threads work without the GIL, and any number of callers may share one
    multiplier, in the process that made it. As a context manager it leaves no thread behind.
    """

    def __init__(self, threads: int):
        require(threads > 0, f"threads is {threads}; allowed: 1 or more")
        try:
            from llada_jax.revision.kernel import MAX_ROWS, kernel_for
        except ImportError as error:
            raise ImportError("tiles need the extra 'revision' of llada_jax (llvmlite)") from error
        self._kernel_for, self._most_rows = kernel_for, MAX_ROWS
        self._threads, self._pid = threads, os.getpid()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tiles")

    def __call__(self, x: Float[np.ndarray, "*rows In"], tiles: Tiles) -> Float[np.ndarray, "..."]:
        """Turns [..., In] float32 into [..., Out]. Raises ValueError where they do not fit,
        and in a fork, which does not have the threads and would wait for them without end."""
        out, inputs = tiles.shape
        require(
            os.getpid() == self._pid,
            f"the multiplier has threads of process {self._pid}, and this is a fork of it; "
            "allowed: one that was made in this process",
        )
        require(x.dtype == np.float32, f"x has dtype {x.dtype}; allowed: float32")
        require(
            x.ndim > 0 and x.shape[-1] == inputs,
            f"x has shape {x.shape}; allowed: [..., {inputs}], the tiles' inputs",
        )
        rows = x.reshape(-1, inputs)
        result = np.empty((len(rows), out), np.float32)
        for start in range(0, len(rows), self._most_rows):
            some = slice(start, start + self._most_rows)
            self._multiply(rows[some], tiles, result[some])
        return result.reshape(*x.shape[:-1], out)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _multiply(
        self, rows: Float[np.ndarray, "r In"], tiles: Tiles, result: Float[np.ndarray, "r Out"]
    ) -> None:
        kernel = self._kernel_for(len(rows))
        inputs = np.ascontiguousarray(rows.T)
        columns = len(tiles.blocks)
        sums = np.empty((columns, len(rows), TILE), np.float32)
        size = -(-columns // (_CHUNKS_PER_THREAD * self._threads))
        starts = iter(range(0, columns, size))

        def work() -> None:
            for first in starts:  # shared: each start is taken once
                kernel(tiles.blocks, inputs, sums, first, min(first + size, columns))

        helpers = [self._pool.submit(work) for _ in range(self._threads - 1)]
        work()
        for helper in helpers:
            helper.result()
        result.reshape(len(rows), columns, TILE)[:] = sums.swapaxes(0, 1)
