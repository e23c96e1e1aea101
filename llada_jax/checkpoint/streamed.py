"""A checkpoint's parameters a few rows at a time, for those who write them somewhere else."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llada_jax.checkpoint.sources import Checkpoint, StoredTensor
from llada_jax.model.quantize import QuantArray

_PIECE_ELEMENTS = 1 << 22


class StreamedParams:
    """Parameters by name, read when they are asked for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._sources = {source.name: source for source in checkpoint.sources}

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        """Gives rows of the first axis in order: floats as stored, `QuantArray`s of int4 blocks.

        Experts of a layer are one parameter [E, ...]; its rows are the experts.
        """
        source, stored = self._sources[name], self._checkpoint.stored
        if source.part != source.spec.shape:
            n_experts, n_rows, _ = source.spec.shape
            for expert in range(n_experts)[start:stop]:
                tensor, place = divmod(expert, n_experts // len(source.tensors))
                rows = range(place * n_rows, (place + 1) * n_rows)
                pieces = _pieces(stored[source.tensors[tensor]], rows.start, rows.stop)
                yield _joined(pieces, None)
            return
        n_rows = source.part[0]
        stop = n_rows if stop is None else stop
        tensor, order = stored[source.tensors[0]], self._checkpoint.row_order(source)
        if order is None:
            yield from _pieces(tensor, source.start + start, source.start + stop)
        else:
            whole = _pieces(tensor, source.start, source.start + n_rows)
            yield _joined(whole, np.argsort(order)[start:stop])


def _joined(pieces: Iterator[Any], index: Any) -> Any:
    return jax.tree.map(lambda *parts: np.concatenate(parts)[index], *pieces)


def _pieces(tensor: StoredTensor, start: int, stop: int) -> Iterator[Any]:
    for raw in tensor.pieces(start, stop, _PIECE_ELEMENTS):
        if tensor.int4 is None:
            yield tensor.decode(raw).reshape(len(raw), *tensor.shape[1:])
        else:
            yield QuantArray(*map(jnp.asarray, tensor.decode_int4(raw)))
