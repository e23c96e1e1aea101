"""The experts that are in memory, and a thread that reads others while the model computes.

Memory is a fixed number of equal places. A layer's residents hold one each; the few that are left
are what experts are read into, also those that are used once and given up again.
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

SPARE = 3
"""Places beside those of residents: one is read into, one is computed with, one is ready."""
_Key = tuple[int, int]
"""A routed layer and an expert of it."""


class ExpertSlots:
    """Experts in memory. To be used in a `with` statement, by one thread."""

    def __init__(self, file: ExpertFile, resident: Bool[np.ndarray, "N E"]) -> None:
        """Has the `resident` experts of each routed layer read."""
        self._file, size = file, file.shape.expert_bytes
        places = int(resident.sum()) + SPARE
        memory = page_aligned(places * size).reshape(places, size)
        self.memory_bytes = memory.nbytes
        self._free = list(memory)
        self._wanted: deque[_Key] = deque((int(n), int(e)) for n, e in np.argwhere(resident))
        self._reading: _Key | None = None
        self._there: dict[_Key, tuple[np.ndarray, FeedForward]] = {}
        self._resident: list[set[int]] = [set(np.flatnonzero(each).tolist()) for each in resident]
        self._changed = threading.Condition()
        self._stopped, self._error = False, None
        self.read = 0
        """Experts read since the first residents were there."""
        self.waited = 0.0
        """Seconds that computing waited for experts since then."""
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
        self._there.clear()
        self._free.clear()

    def resident(self, layer: int) -> set[int]:
        """Returns the experts of a layer that are there, or are on their way to stay."""
        return set(self._resident[layer])

    def want(self, layer: int, experts: Iterable[int]) -> list[int]:
        """Has experts read next, before all that is on its way already, and returns the order in
        which they will be there: those that are, residents on their way, the others as given."""
        with self._changed:
            order = sorted(experts, key=lambda e: self._rank(layer, e))
            missing = [(layer, expert) for expert in order if self._rank(layer, expert) > 1]
            later = [key for key in self._wanted if key not in missing]
            self._wanted = deque([*missing, *later])
            self._changed.notify_all()
        return order

    def _rank(self, layer: int, expert: int) -> int:
        key = layer, expert
        if key in self._there:
            return 0
        return 1 if key == self._reading else 2 if expert in self._resident[layer] else 3

    def bring(self, layer: int, expert: int, victim: int) -> None:
        """Has an expert read ahead of time, that takes the place of another one."""
        self.evict(layer, victim)
        self._resident[layer].add(expert)
        with self._changed:
            self._wanted.append((layer, expert))
            self._changed.notify_all()

    def keep(self, layer: int, expert: int) -> None:
        """Makes an expert that was wanted a resident."""
        self._resident[layer].add(expert)

    def evict(self, layer: int, expert: int) -> None:
        """Gives an expert's place up."""
        self._resident[layer].discard(expert)
        key = (layer, expert)
        with self._changed:
            if key in self._wanted:
                self._wanted.remove(key)
                return
            self._await(key)
            self._free.append(self._there.pop(key)[0])
            self._changed.notify_all()

    def matrices(self, layer: int, expert: int) -> FeedForward:
        """Returns an expert once it is there; valid until it is evicted.

        Raises what reading raised.
        """
        began = time.perf_counter()
        with self._changed:
            self._await((layer, expert))
            self.waited += time.perf_counter() - began
            return self._there[layer, expert][1]

    def _await(self, key: _Key) -> None:
        self._changed.wait_for(lambda: key in self._there or self._error is not None)
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
            key, place = self._wanted.popleft(), self._free.pop()
            self._reading = key
        self._file.read(*key, place)
        matrices = self._file.matrices(place)
        with self._changed:
            self._there[key], self._reading = (place, matrices), None
            self.read += 1
            self._changed.notify_all()
        return True
