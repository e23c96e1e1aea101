"""Multiplies rows by weights in tiles, on several threads of the host."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import numpy as np
from jaxtyping import Float

from llada_jax.config import require
from llada_jax.revision.tiles import TILE, Tiles

_CHUNKS_PER_THREAD = 4  # small chunks, so that a slowed-down thread does less of the work


class TileMultiplier:
    """`multiply(x, tiles)`: x times the transposed weight in float32, as `linear` computes it.

    Weights are decoded in registers, so the only extra memory is a copy of `x`. Threads run without
    the GIL. Any number of callers may share a multiplier, in the process that made it. Use it as a
    context manager to end its threads.
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
        """Maps [..., In] float32 to [..., Out]. Raises ValueError if the shapes do not match, and
        in a forked process, which does not have the threads and would wait for them forever."""
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
            part = slice(start, start + self._most_rows)
            self._multiply(rows[part], tiles, result[part])
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
            for first in starts:  # the iterator is shared, so threads take different chunks
                kernel(tiles.blocks, inputs, sums, first, min(first + size, columns))

        helpers = [self._pool.submit(work) for _ in range(self._threads - 1)]
        work()
        for helper in helpers:
            helper.result()
        result.reshape(len(rows), columns, TILE)[:] = sums.swapaxes(0, 1)
