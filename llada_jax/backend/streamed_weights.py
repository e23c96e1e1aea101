"""Layers in less memory than they take: some stay, the others are staged by a thread in time.

The thread copies one transfer after the other from the file into an area, in the order in which a
forward uses the layers, forward after forward. Where each layer goes is decided beforehand; the
thread only waits until nothing there is needed any more, and a layer that is due waits for its
transfer. So the store carries a plan out, whoever made it (`llada_jax.swap` does): it is here, and
not there, because what it hands out are JAX arrays.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from itertools import count, product
from typing import Any, NamedTuple, Self

import numpy as np

from llada_jax.backend.layer_file import ALIGNMENT, LayerFile, weights_of
from llada_jax.config import require


class StagedLayers(NamedTuple):
    """Layers that are staged at once."""

    layers: tuple[int, ...]
    """Numbers of the layers, in order of use."""
    offsets: tuple[int, ...]
    """Offset in bytes of each layer in the slot, or in the area."""
    in_slot: bool
    """Whether they go into the next slot, or to places of their own in the area."""


class LayerStaging(NamedTuple):
    """What is staged in a forward, and where. Layers of no transfer stay in memory."""

    transfers: tuple[StagedLayers, ...]
    area_bytes: int
    slots: tuple[int, ...]
    """Offset in the area of each slot; they take turns."""

    @property
    def staged(self) -> frozenset[int]:
        return frozenset(layer for transfer in self.transfers for layer in transfer.layers)


class _Use(NamedTuple):
    """A layer in one forward."""

    forward: int
    layer: int


class StreamedWeights:
    """The layers of a file, some of them in memory. To be used in a `with` statement.

    Every forward uses each layer once, in the order of the transfers: `acquire`, then `release`.
    """

    def __init__(self, file: LayerFile, staging: LayerStaging):
        """Loads what stays in memory."""
        self._file, self._staging = file, staging
        self._resident = {
            layer: self._load(layer)
            for layer in range(len(file.layers))
            if layer not in staging.staged
        }
        self._area = _aligned(staging.area_bytes if staging.transfers else 0)
        self._uses = [0] * len(file.layers)
        self._live: dict[_Use, range] = {}
        self._ready: dict[_Use, np.ndarray] = {}
        self._stopped = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self.stalls: list[float] = []
        """Seconds that each forward waited so far."""
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)

    def __enter__(self) -> Self:
        if self._staging.transfers:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()
        self._file.close()

    @property
    def memory_bytes(self) -> int:
        """Bytes that hold weights: the layers that stay, and the area."""
        return self._area.nbytes + sum(self._file.layers[layer].size for layer in self._resident)

    def _load(self, layer: int) -> Mapping[str, Any]:
        stored = self._file.layers[layer]
        memory = _aligned(stored.size)
        self._file.read(layer, memory)
        return weights_of(stored, memory)

    def acquire(self, layer: int) -> Mapping[str, Any]:
        """Returns the weights of a layer, valid until `release`, once they are there.

        Raises what the thread raised, as it raised it.
        """
        use = _Use(self._uses[layer], layer)
        if len(self.stalls) <= use.forward:
            self.stalls.append(0.0)
        if layer in self._resident:
            return self._resident[layer]
        began = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: use in self._ready or self._error or self._stopped)
            if self._error is not None:
                raise self._error
            require(not self._stopped, "the weights are closed; allowed: inside of `with`")
            memory = self._ready.pop(use)
        self.stalls[use.forward] += time.perf_counter() - began
        return weights_of(self._file.layers[layer], memory)

    def release(self, layer: int) -> None:
        """Says that the layer has run, and that its weights may be overwritten."""
        with self._changed:
            self._live.pop(_Use(self._uses[layer], layer), None)
            self._uses[layer] += 1
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            for uses in self._transfers():
                if not self._may_start(uses):
                    return
                self._stage(uses)
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _transfers(self) -> Iterator[dict[_Use, range]]:
        """Yields the transfers of all forwards: the bytes of the area that each layer takes."""
        through = count()
        for forward in count():
            for transfer in self._staging.transfers:
                base = 0
                if transfer.in_slot:
                    base = self._staging.slots[next(through) % len(self._staging.slots)]
                yield {
                    _Use(forward, layer): range(
                        base + offset, base + offset + self._file.layers[layer].size
                    )
                    for layer, offset in zip(transfer.layers, transfer.offsets, strict=True)
                }

    def _may_start(self, uses: Mapping[_Use, range]) -> bool:
        """Waits until all of its place is free, and takes it; False where the store was closed."""

        def free() -> bool:
            pairs = product(uses.values(), self._live.values())
            return not any(a.start < b.stop and b.start < a.stop for a, b in pairs)

        with self._changed:
            self._changed.wait_for(lambda: self._stopped or free())
            self._live.update(uses)
            return not self._stopped

    def _stage(self, uses: Mapping[_Use, range]) -> None:
        staged = {use: self._area[place.start : place.stop] for use, place in uses.items()}
        for use, memory in staged.items():
            self._file.read(use.layer, memory)
        with self._changed:
            self._ready.update(staged)
            self._changed.notify_all()


def _aligned(size: int) -> np.ndarray:
    """Returns bytes that start where XLA likes arrays to; they take memory as they are written."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size]
