"""Layers in less memory than they take: some stay, a thread reads the others in time.

The others take turns in two slots, in the order in which a forward uses the layers, forward after
forward: while one is computed with, the next one is read. A layer that is due waits for its turn.
"""

import threading
import time
from collections.abc import Collection, Mapping
from itertools import count, cycle
from typing import Any, Self

import numpy as np

from llada_jax.backend.layer_file import ALIGNMENT, LayerFile, weights_of
from llada_jax.config import require

SLOTS = 2


class StreamedWeights:
    """The layers of a file, some of them in memory. To be used in a `with` statement.

    Every forward uses each layer once, in order: `acquire`, then `release`.
    """

    def __init__(self, file: LayerFile, resident: Collection[int]):
        """Loads the layers that stay in memory, by their numbers; of no more others than slots,
        all."""
        self._file, sizes = file, [layer.size for layer in file.layers]
        staged = [layer for layer in range(len(sizes)) if layer not in resident]
        self._staged = staged if len(staged) > SLOTS else []
        kept = [layer for layer in range(len(sizes)) if layer not in self._staged]
        self._resident = {layer: self._read(layer, _aligned(sizes[layer])) for layer in kept}
        largest = max((sizes[layer] for layer in self._staged), default=0)
        self._slots = [_aligned(largest) for _ in self._staged[:SLOTS]]
        self.memory_bytes = sum(sizes[layer] for layer in self._resident)
        """Bytes that hold weights: the layers that stay, and the slots."""
        self.memory_bytes += sum(slot.nbytes for slot in self._slots)
        self._ready: dict[int, Mapping[str, Any]] = {}
        self._read_so_far = self._released = 0
        self._stopped = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self.stalls: list[float] = []
        """Seconds that each forward waited so far."""
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def __enter__(self) -> Self:
        if self._staged:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()
        self._file.close()

    def _read(self, layer: int, memory: np.ndarray) -> Mapping[str, Any]:
        self._file.read(layer, memory)
        return weights_of(self._file.layers[layer], memory)

    def acquire(self, layer: int) -> Mapping[str, Any]:
        """Returns the weights of a layer, valid until `release`, once they are there.

        Raises what the thread raised, as it raised it.
        """
        if layer == 0:
            self.stalls.append(0.0)
        if layer in self._resident:
            return self._resident[layer]
        began = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: layer in self._ready or self._error or self._stopped)
            if self._error is not None:
                raise self._error
            require(not self._stopped, "the weights are closed; allowed: inside of `with`")
            self.stalls[-1] += time.perf_counter() - began
            return self._ready.pop(layer)

    def release(self, layer: int) -> None:
        """Says that the layer has run, and that its weights may be overwritten."""
        with self._changed:
            self._released += layer not in self._resident
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            for number, layer in zip(count(), cycle(self._staged), strict=False):
                with self._changed:
                    self._changed.wait_for(
                        lambda n=number: self._stopped or n < self._released + len(self._slots)
                    )
                    if self._stopped:
                        return
                weights = self._read(layer, self._slots[number % len(self._slots)])
                with self._changed:
                    self._ready[layer] = weights
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()


def _aligned(size: int) -> np.ndarray:
    """Returns bytes that start where XLA likes arrays to; they take memory as they are written."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]
