"""What the host keeps of a canvas: its cache, and what of the last forward has yet to enter it.

A row's key and value are needed only once it is no row any more, so they lie where the executables
left them until the next forward, and only those that have left the window enter the cache.
"""

from collections.abc import Mapping, Sequence
from threading import RLock
from typing import NamedTuple
from weakref import ref

import numpy as np
from jaxtyping import Bool, Int


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
