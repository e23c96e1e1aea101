"""Groups the canvases of a batch into forward passes, and keeps the caches of each canvas.

Canvases in a pack share one pass over the weights, which dominate the memory traffic. Each canvas
still has its own cache and an attention of the same shape as alone, so packing does not change its
results.

Keys and values of a row are needed only once its position is read from the cache, that is, once it
is not a row any more. So they stay in the executables' output buffers until the next forward pass,
and only the rows that have left the window are copied into the cache.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import RLock
from typing import NamedTuple
from weakref import ref

import numpy as np
from jaxtyping import Bool, Int

EMPTY_ROWS = 16
"""Maximum padding rows per pass that avoid another pass: computing them takes about as long as
reading the weights once more."""


class LiveRows(NamedTuple):
    """The live rows of one canvas in one forward."""

    tokens: Int[np.ndarray, " r"]
    positions: Int[np.ndarray, " r"]
    sees_cache: Bool[np.ndarray, "r L"]
    sees_rows: Bool[np.ndarray, "r r"]
    written: Bool[np.ndarray, " r"]


class Pack(NamedTuple):
    """One forward pass: indices of canvases, the slots they run in, and the rows of each slot."""

    canvases: list[int]
    slots: int
    rows: int


def pack_canvases(
    counts: Sequence[int], sizes_for: Callable[[int], tuple[int, Sequence[int]]]
) -> Iterator[Pack]:
    """Yields forward passes for all canvases that have rows. `counts` are live rows by canvas,
    `sizes_for` is `Program.sizes_for`; canvases with the same row bucket share passes."""
    by_bucket: dict[int, list[int]] = {}
    for canvas, count in enumerate(counts):
        if count:
            by_bucket.setdefault(sizes_for(count)[0], []).append(canvas)
    for rows, remaining in by_bucket.items():
        _, sizes = sizes_for(rows)
        while remaining:
            slots = next((size for size in sizes if size >= len(remaining)), sizes[-1])
            if (slots - len(remaining)) * rows > EMPTY_ROWS:
                slots = max(size for size in sizes if size <= len(remaining))
            yield Pack(remaining[:slots], slots, rows)
            remaining = remaining[slots:]


def pack_sizes(canvases: Sequence[int], rows: int, max_rows: int) -> list[int]:
    """Returns the numbers of canvases with at most `max_rows` rows in all; 1 is always allowed."""
    return [size for size in canvases if size == 1 or size * rows <= max_rows]


class PendingRows(NamedTuple):
    """Keys and values of the last forward pass that are not in the cache yet."""

    rows: Int[np.ndarray, " r"]
    """Indices of the rows in the outputs."""
    positions: Int[np.ndarray, " r"]
    outputs: Sequence[Mapping[str, np.ndarray]]
    """By shard, then by name."""


class CanvasCache:
    """The cache of one canvas: for each shard, arrays by the names of its inputs."""

    def __init__(self) -> None:
        self.cache: list[dict[str, np.ndarray]] = []
        self.pending: PendingRows | None = None

    def copy_pending(self) -> None:
        """Copies the pending rows out of the output buffers before other canvases run."""
        if self.pending is not None:
            rows, positions, outputs = self.pending
            copies = [
                {name: array[:, rows] for name, array in out.items() if name.startswith("new_")}
                for out in outputs
            ]
            self.pending = PendingRows(np.arange(len(rows)), positions, copies)

    def flush(self, positions: Int[np.ndarray, " r"], seen: Bool[np.ndarray, " L"]) -> None:
        """Writes the pending rows into the cache, except those that are rows again.

        Rows at `positions` bring their own keys and values. But if some row sees a position in the
        cache (`seen`), it is written even so: this is a row that refreshes a cached token.
        """
        if self.pending is None:
            return
        pending, written = self.pending.positions, np.ones(len(seen), bool)
        written[positions] = False
        write = (written | seen)[pending]
        if write.any():
            at, rows = _index(pending[write]), _index(self.pending.rows[write])
            for cache, outputs in zip(self.cache, self.pending.outputs, strict=True):
                for name, array in cache.items():
                    array[:, at] = outputs[f"new_{name}"][:, rows]
        self.pending = None


def _index(numbers: Int[np.ndarray, " r"]) -> slice | Int[np.ndarray, " r"]:
    """Returns a slice if the numbers are consecutive: it takes a fraction of the time."""
    first, count = int(numbers[0]), len(numbers)
    return slice(first, first + count) if (np.diff(numbers) == 1).all() else numbers


class OutputBuffers:
    """The output memory of a program's executables, which all sessions of the program share."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.users: list[ref[CanvasCache]] = []
        """Canvases of the last forward pass; their pending rows are still in this memory."""

    def acquire(self, canvases: Sequence[CanvasCache]) -> None:
        """Lets the canvases run next; pending rows of other canvases are copied first."""
        for user in self.users:
            canvas = user()
            if canvas is not None and canvas not in canvases:
                canvas.copy_pending()
        self.users = list(map(ref, canvases))
