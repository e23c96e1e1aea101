"""The experts in memory, and a thread that reads others while the model computes.

Memory is a fixed number of equal buffers. Each resident expert occupies one. The few spare ones are
for experts that are being read, including those that are used once and then evicted.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Self

import numpy as np
from jaxtyping import Bool

from llada_jax.experts.decoding.expert_file import ExpertFile, page_aligned
from llada_jax.model.params import FeedForward

_SPARE = 3
"""Buffers in addition to the residents': one to read into, one to compute with, one ready."""
_Key = tuple[int, int]
"""Index of a routed layer, and of its expert."""


class ExpertSlots:
    """Experts in memory. Used as a context manager, by one thread."""

    def __init__(self, file: ExpertFile, resident: Bool[np.ndarray, "N E"]) -> None:
        """Requests the `resident` experts of each routed layer."""
        self._file, size = file, file.shape.expert_bytes
        n_buffers = int(resident.sum()) + _SPARE
        memory = page_aligned(n_buffers * size).reshape(n_buffers, size)
        self.memory_bytes = memory.nbytes
        self._free = list(memory)
        self._wanted: deque[_Key] = deque((int(n), int(e)) for n, e in np.argwhere(resident))
        self._reading: _Key | None = None
        self._loaded: dict[_Key, tuple[np.ndarray, FeedForward]] = {}
        self._resident: list[set[int]] = [set(np.flatnonzero(e).tolist()) for e in resident]
        self._changed = threading.Condition()
        self._stopped, self._error = False, None
        self.read = 0
        """Number of experts read after the first residents."""
        self.waited = 0.0
        """Seconds spent waiting for experts, after the first residents."""
        self._thread = threading.Thread(target=self._run, name="experts", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        for layer, experts in enumerate(self._resident):
            for expert in experts:
                self.matrices(layer, expert)
        self.read, self.waited = 0, 0.0
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()
        self._loaded.clear()
        self._free.clear()

    def resident(self, layer: int) -> set[int]:
        """Returns the resident experts of a layer, including experts that are still being read."""
        return set(self._resident[layer])

    def request(self, layer: int, experts: Iterable[int]) -> list[int]:
        """Requests experts before all earlier requests. Returns the order in which they will be
        available: loaded ones, residents being read, then the others in the given order."""
        with self._changed:
            order = sorted(experts, key=lambda e: self._rank(layer, e))
            missing = [(layer, expert) for expert in order if self._rank(layer, expert) > 1]
            later = [key for key in self._wanted if key not in missing]
            self._wanted = deque([*missing, *later])
            self._changed.notify_all()
        return order

    def _rank(self, layer: int, expert: int) -> int:
        key = layer, expert
        if key in self._loaded:
            return 0
        return 1 if key == self._reading else 2 if expert in self._resident[layer] else 3

    def prefetch(self, layer: int, expert: int, victim: int) -> None:
        """Requests an expert that replaces a resident one, after all earlier requests."""
        self.evict(layer, victim)
        self._resident[layer].add(expert)
        with self._changed:
            self._wanted.append((layer, expert))
            self._changed.notify_all()

    def keep(self, layer: int, expert: int) -> None:
        """Makes a requested expert a resident."""
        self._resident[layer].add(expert)

    def evict(self, layer: int, expert: int) -> None:
        """Frees an expert's buffer."""
        self._resident[layer].discard(expert)
        key = (layer, expert)
        with self._changed:
            if key in self._wanted:
                self._wanted.remove(key)
                return
            self._await(key)
            self._free.append(self._loaded.pop(key)[0])
            self._changed.notify_all()

    def matrices(self, layer: int, expert: int) -> FeedForward:
        """Waits for a requested expert, and returns it; valid until it is evicted.

        Raises the errors of reading it.
        """
        began = time.perf_counter()
        with self._changed:
            self._await((layer, expert))
            self.waited += time.perf_counter() - began
            return self._loaded[layer, expert][1]

    def _await(self, key: _Key) -> None:
        self._changed.wait_for(lambda: key in self._loaded or self._error is not None)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while self._read_next():
                pass
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _read_next(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or (self._wanted and self._free))
            if self._stopped:
                return False
            key, buffer = self._wanted.popleft(), self._free.pop()
            self._reading = key
        self._file.read(*key, buffer)
        matrices = self._file.matrices(buffer)
        with self._changed:
            self._loaded[key], self._reading = (buffer, matrices), None
            self.read += 1
            self._changed.notify_all()
        return True
