"""A checkpoint's parameters a few rows at a time, for those who write them somewhere else."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llada_jax.checkpoint.tensors import Placement, RowOrder, Stored
from llada_jax.config import ModelConfig
from llada_jax.model.params import abstract_params, parameter_name
from llada_jax.model.quantize import QuantArray

_PIECE_ELEMENTS = 1 << 22


class StreamedParams:
    """Parameters by name, read when they are asked for."""

    def __init__(
        self,
        config: ModelConfig,
        placed: Sequence[Placement],
        stored: Mapping[str, Stored],
        row_order: RowOrder = lambda place: None,
    ):
        paths = (path for path, _ in jax.tree.leaves_with_path(abstract_params(config)))
        self._placed = dict(zip(map(parameter_name, paths), placed, strict=True))
        self._stored = stored
        self._row_order = row_order

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        """Rows of the first axis, in order: floats as stored, or `QuantArray`s of int4 blocks.

        Experts of a layer are one parameter [E, ...]; its rows are the experts.
        """
        place = self._placed[name]
        if place.part != place.spec.shape:
            for tensor in place.tensors[start:stop]:
                pieces = list(_pieces(self._stored[tensor], 0, self._stored[tensor].shape[0]))
                yield jax.tree.map(lambda *parts: np.concatenate(parts)[None], *pieces)
            return
        n_rows = place.part[0]
        stop = n_rows if stop is None else stop
        tensor = next(iter(place.tensors))
        stored, order = self._stored[tensor], self._row_order(place)
        if order is None:
            yield from _pieces(stored, place.start + start, place.start + stop)
            return
        pieces = list(_pieces(stored, place.start, place.start + n_rows))
        stored_row = np.argsort(order)[start:stop]
        yield jax.tree.map(lambda *parts: np.concatenate(parts)[stored_row], *pieces)


def _pieces(stored: Stored, start: int, stop: int) -> Iterator[Any]:
    columns = max(1, int(np.prod(stored.shape[1:])))
    step = max(1, _PIECE_ELEMENTS // columns)
    for first in range(start, stop, step):
        raw = stored.raw(first, min(first + step, stop))
        if stored.int4 is not None:
            values, scale = stored.int4(raw)
            yield QuantArray(jnp.asarray(values), jnp.asarray(scale))
        else:
            yield stored.decode(raw).reshape(len(raw), *stored.shape[1:])
