"""Matrix products with int8 weights on this CPU's cores; the kernel is compiled at first use."""

import mmap
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from llada_jax.backend.native.kernel import (
    CHUNK_STEPS,
    COLUMN,
    GROUP,
    JOB_WORDS,
    STEP,
    TILE_ROWS,
    Form,
    Instructions,
    product_kernel,
)
from llada_jax.backend.resources import available_cores
from llada_jax.backend.weights import StoredPiece

_HUGE_PAGE = 1 << 21
_SHARED_BYTES = 1 << 18  # of weights; with fewer, a product takes no longer than waking a thread
_HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)


def rounded(size: int) -> int:
    """Returns the number of inputs or outputs as the kernel has them: a multiple of 64."""
    return -(-size // STEP) * STEP


def aligned(n_bytes: int) -> Int[np.ndarray, " n_bytes"]:
    """Returns zeros that begin at a cache line, and if they are large in huge pages: a core reads
    these up to a fifth faster."""
    if n_bytes < _HUGE_PAGE:
        memory = np.zeros(n_bytes + 64, np.int8)
        start = -memory.ctypes.data % 64
    else:
        private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if _HUGE_PAGES else {}
        pages = mmap.mmap(-1, n_bytes + _HUGE_PAGE, **private)
        if _HUGE_PAGES:
            pages.madvise(_HUGE_PAGES)
        memory = np.frombuffer(pages, np.int8)
        start = -memory.ctypes.data % _HUGE_PAGE
    return memory[start : start + n_bytes]


def aligned_floats(*shape: int) -> Float[np.ndarray, "..."]:
    """Returns float32 zeros that begin at a cache line."""
    return aligned(4 * int(np.prod(shape))).view(np.float32).reshape(shape)


class PackedWeight(NamedTuple):
    """An int8 matrix in the order in which the kernel reads it, padded with zeros to multiples of
    64. By groups of 8 columns of 32 outputs, chunks of 512 inputs, columns, steps of 64 inputs,
    halves, 4 inputs: 16 outputs of 4 inputs are next to each other."""

    numbers: Int[np.ndarray, " n_bytes"]
    sums: Int[np.ndarray, " Out"]
    """int32, over the inputs."""
    scales: Float[np.ndarray, " Out"]
    inputs: int

    @property
    def outputs(self) -> int:
        """The number of outputs, with padding."""
        return len(self.scales)

    def columns(self, start: int, stop: int) -> "PackedWeight":
        """Returns a view of some outputs; `start` is a multiple of 256."""
        part = slice(start, stop)
        width = rounded(self.inputs)
        return PackedWeight(
            self.numbers[start * width : stop * width], self.sums[part], self.scales[part],
            self.inputs,
        )  # fmt: skip


def pack(
    matrices: Sequence[Iterable[StoredPiece]],
    shapes: Sequence[tuple[int, ...]],
    pad_each: bool = False,
) -> PackedWeight:
    """Packs matrices [Out, In] with the same inputs under each other; `pad_each` pads each one."""
    sizes = [rounded(out) if pad_each else out for out, _ in shapes]
    inputs, outputs = shapes[0][1], rounded(sum(sizes))
    width, steps = rounded(inputs), rounded(inputs) // STEP
    numbers = aligned(outputs * width)
    sums, scales = np.zeros(outputs, np.int32), np.zeros(outputs, np.float32)
    group, rows = GROUP * COLUMN, np.zeros((GROUP * COLUMN, width), np.int8)
    filled = start = 0  # rows of the group, and its first output

    def flush() -> None:
        nonlocal rows, start
        count = min(group, outputs - start)
        if not count:
            return
        target = numbers[start * width : (start + count) * width]
        sums[start : start + count] = rows[:count].sum(axis=1, dtype=np.int32)
        tiles = rows[:count].reshape(-1, 2, 16, steps, 16, 4).transpose(0, 3, 1, 4, 2, 5)
        for first in range(0, steps, CHUNK_STEPS):
            part = tiles[:, first : first + CHUNK_STEPS]
            begin = first * STEP * count
            target[begin : begin + part.size] = part.reshape(-1)
        rows[:] = 0
        start += count

    for pieces, shape, size in zip(matrices, shapes, sizes, strict=True):
        missing = size - shape[0]
        padding = StoredPiece(np.zeros((missing, inputs), np.int8), np.zeros((missing, 1), "f4"))
        for piece in (*pieces, padding):
            assert piece.scale is not None, "int8"
            done = 0
            while done < len(piece.numbers):
                count = min(len(piece.numbers) - done, group - filled)
                part = slice(done, done + count)
                rows[filled : filled + count, :inputs] = piece.numbers[part]
                scales[start + filled : start + filled + count] = piece.scale[part, 0]
                filled, done = filled + count, done + count
                if filled == group:
                    flush()
                    filled = 0
    flush()
    return PackedWeight(numbers, sums, scales, inputs)


class Multiplier:
    """Runs products on all cores; one product at a time."""

    def __init__(self, instructions: Instructions | None = None, threads: int | None = None):
        self._instructions = instructions
        self._helpers = (threads or available_cores()) - 1
        self._pool = ThreadPoolExecutor(max(1, self._helpers), thread_name_prefix="products")
        self._packed = np.zeros(0, np.int8)

    def __call__(
        self,
        rows: Float[np.ndarray, "R In"],
        weight: PackedWeight,
        out: Float[np.ndarray, "R Out"],
        form: Form = "plain",
        second: Float[np.ndarray, "..."] | None = None,
        adds: bool = False,
        eps: float = 0.0,
    ) -> None:
        """Multiplies rows, whose inputs are padded like the weight's, and writes or adds `out`.

        For `form`, `second` and `adds` see `product_kernel`. Arrays are float32; their last axes
        are contiguous.
        """
        n_rows, steps = len(rows), rounded(weight.inputs) // STEP
        n_bytes = -(-n_rows // TILE_ROWS) * TILE_ROWS * steps * STEP
        if len(self._packed) < n_bytes:
            self._packed = aligned(n_bytes)
        units = np.empty(n_rows, np.float32)
        arrays = (weight.numbers, weight.sums, weight.scales, rows)
        arrays += (rows if second is None else second, self._packed, units, out)
        numbers = (weight.inputs, rows.strides[0] // 4, steps, n_rows, weight.outputs // COLUMN)
        numbers += (out.strides[0] // 4, int(np.float32(eps).view(np.int32)))
        job = aligned(8 * JOB_WORDS).view(np.int64)
        job[: len(arrays) + len(numbers)] = [*(array.ctypes.data for array in arrays), *numbers]
        kernel = product_kernel(form, adds, self._instructions)
        for _ in range(self._helpers if weight.numbers.size >= _SHARED_BYTES else 0):
            self._pool.submit(lambda: kernel(job.ctypes.data))
        kernel(job.ctypes.data)  # returns when the product is complete, whoever worked on it
