"""The canvases of a batch: which ones share a forward, and what the host keeps of each.

Of a forward that canvases share the weights are read once. Each canvas has its own cache and its
own attention, of the same shape as alone, so it gets the very numbers that it gets alone.

A row's key and value are needed only once it is no row any more, so they lie where the executables
left them until the next forward, and only those that have left the window enter the cache.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import RLock
from typing import NamedTuple
from weakref import ref

import numpy as np
from jaxtyping import Bool, Int

EMPTY_ROWS = 16
"""Rows of padding that are worth a pass over the weights: their products take about as long."""


class LiveRows(NamedTuple):
    """The live rows of one canvas in one forward."""

    tokens: Int[np.ndarray, " r"]
    positions: Int[np.ndarray, " r"]
    sees_cache: Bool[np.ndarray, "r L"]
    sees_rows: Bool[np.ndarray, "r r"]
    written: Bool[np.ndarray, " r"]


class Pack(NamedTuple):
    """A forward: canvases by index, and in how many places of how many rows they run."""

    canvases: list[int]
    places: int
    rows: int


def packs(
    counts: Sequence[int], sizes_for: Callable[[int], tuple[int, Sequence[int]]]
) -> Iterator[Pack]:
    """Yields forwards of all canvases that have rows, as `Program.sizes_for` has their buckets;
    those of one forward have the same bucket of rows."""
    alike: dict[int, list[int]] = {}
    for canvas, count in enumerate(counts):
        if count:
            alike.setdefault(sizes_for(count)[0], []).append(canvas)
    for rows, left in alike.items():
        _, sizes = sizes_for(rows)
        while left:
            places = next((size for size in sizes if size >= len(left)), sizes[-1])
            if (places - len(left)) * rows > EMPTY_ROWS:
                places = max(size for size in sizes if size <= len(left))
            yield Pack(left[:places], places, rows)
            left = left[places:]


def sizes_within(canvases: Sequence[int], rows: int, most_rows: int) -> list[int]:
    """Returns those numbers of canvases of which all rows fit a bucket of one; 1 always does."""
    return [size for size in canvases if size == 1 or size * rows <= most_rows]


class Fresh(NamedTuple):
    """What of the last forward has yet to enter the cache; keys and values by shard."""

    rows: Int[np.ndarray, " r"]
    """Indices into the outputs."""
    positions: Int[np.ndarray, " r"]
    outputs: Sequence[Mapping[str, np.ndarray]]


class CanvasCache:
    """One canvas of the batch: its cache, for each shard by the names of its inputs."""

    def __init__(self) -> None:
        self.cache: list[dict[str, np.ndarray]] = []
        self.fresh: Fresh | None = None
        """Keys and values of the last forward, where the executables left them."""

    def make_room(self) -> None:
        """Copies what the executables hold for this canvas: others will run."""
        if self.fresh is not None:
            rows, positions, outputs = self.fresh
            kept = [
                {name: array[:, rows] for name, array in out.items() if name.startswith("new_")}
                for out in outputs
            ]
            self.fresh = Fresh(np.arange(len(rows)), positions, kept)

    def write_left(self, positions: Int[np.ndarray, " r"], seen: Bool[np.ndarray, " L"]) -> None:
        """Puts the last forward's keys and values into the cache where no row stands now, and where
        one does but others see the cache: a row that refreshes a token of the cache."""
        if self.fresh is None:
            return
        fresh = self.fresh.positions
        stands = np.isin(fresh, positions)
        left = ~stands | seen[fresh] if len(seen) else ~stands
        if left.any():
            positions, rows = fresh[left], self.fresh.rows[left]
            for cache, outputs in zip(self.cache, self.fresh.outputs, strict=True):
                for name, array in cache.items():
                    array[:, positions] = outputs[f"new_{name}"][:, rows]
        self.fresh = None


class Turn:
    """Who uses a program's executables, whose memory is one, whichever session asks."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.last_to_run: list[ref[CanvasCache]] = []
        """The canvases whose keys and values still lie in the executables."""

    def take(self, canvases: Sequence[CanvasCache]) -> None:
        """Lets the canvases run next; what others have left is copied first."""
        for last in self.last_to_run:
            canvas = last()
            if canvas is not None and canvas not in canvases:
                canvas.make_room()
        self.last_to_run = list(map(ref, canvases))
