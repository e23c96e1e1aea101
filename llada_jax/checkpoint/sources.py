"""Maps the parameters of a model to the tensors in its files.

A file format lists its tensors (`StoredTensor`). The model's parameter tree and its family's names
determine the tensors that are needed (`ParamSource`). `checked` compares the two before the first
tensor is read, so a bad checkpoint fails early. Files are read instead of memory-mapped, because
mapped pages would count as resident memory until the file is closed.
"""

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from llada_jax.config import ModelConfig, require
from llada_jax.model.architecture.parameters import ParamSpec, is_routed, named_specs
from llada_jax.model.families.family import Names, checkpoint_name
from llada_jax.model.finite import all_finite, require_finite
from llada_jax.model.quantize import QuantArray

FLOATS: Mapping[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_LISTED = 4
_REFUSED_ELEMENTS, _STREAMED_ELEMENTS = 1 << 20, 1 << 22


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file. Its rows can be read without the rest."""

    name: str
    file: Path
    offset: int
    shape: tuple[int, ...]
    row_bytes: int
    kind: str
    """Number type, in the format's spelling."""
    dtype: np.dtype | None
    """Dtype after loading if none is requested, or None if the kind is not supported."""
    blocks: Callable[[np.ndarray], np.ndarray] | None = None
    """Converts raw bytes [rows, row_bytes] to floats [rows, columns]; None if they are floats."""
    int4: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None
    """Converts raw bytes to int4 and scales, for kinds with the int4 format of `quantize`."""

    def decode(self, raw: np.ndarray) -> np.ndarray:
        """Converts raw bytes from `pieces` to floats [rows, columns].

        Raises ValueError if one is NaN or infinite; the message counts them in the whole tensor.
        """
        numbers = self._floats(raw)
        if not all_finite(numbers):
            self._refuse(self._floats)
        return numbers

    def decode_int4(self, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Converts raw bytes to int4 and scales. Raises ValueError as `decode`."""
        int4 = self.int4
        assert int4 is not None
        integers, scale = int4(raw)
        if not all_finite(scale):
            self._refuse(lambda rows: int4(rows)[1])
        return integers, scale

    def _floats(self, raw: np.ndarray) -> np.ndarray:
        if self.blocks is not None:
            with np.errstate(invalid="ignore", over="ignore"):  # `decode` reports it
                return self.blocks(raw)
        assert self.dtype is not None  # `checked` has refused other kinds
        return raw.view(self.dtype)

    def _refuse(self, floats: Callable[[np.ndarray], np.ndarray]) -> None:
        pieces = self.pieces(0, self.shape[0], _REFUSED_ELEMENTS)
        require_finite(f"{self.file}: {self.name}", map(floats, pieces))

    def pieces(
        self, start: int, stop: int, elements: float, out: np.ndarray | None = None
    ) -> Iterator[np.ndarray]:
        """Reads rows `start` to `stop`, uint8 [rows, row_bytes], in pieces of about `elements`
        numbers. With `out`, an array of all these rows, the pieces are views of it. Raises
        ValueError if the file is too short."""
        step = max(1, int(min(elements, 1 << 40)) // max(1, math.prod(self.shape[1:])))
        with self.file.open("rb") as file:
            file.seek(self.offset + start * self.row_bytes)
            for first in range(start, stop, step):
                shape = min(step, stop - first), self.row_bytes
                rows = np.empty(shape, np.uint8) if out is None else out[first - start :][:step]
                read = file.readinto(rows)
                require(read == rows.nbytes, f"{self.file} ends before all of {self.name}")
                yield rows

    def read(self, start: int, stop: int) -> np.ndarray:
        """Reads rows `start` to `stop` as one array, uint8 [rows, row_bytes]."""
        return np.concatenate([*self.pieces(start, stop, math.inf)])


@dataclass(frozen=True)
class ComputedTensor(StoredTensor):
    """A tensor that is computed from other tensors, row by row, when it is read."""

    rows: Callable[[int, int], np.ndarray] = field(kw_only=True)
    """`rows(start, stop)` returns float32 [stop - start, columns]."""

    @classmethod
    def of(
        cls,
        like: StoredTensor,
        rows: Callable[[int, int], np.ndarray],
        shape: tuple[int, ...],
        kind: str,
        dtype: np.dtype | None,
    ) -> "ComputedTensor":
        """Returns a computed tensor with the name and the file of the tensor `like`."""
        return cls(
            like.name, like.file, like.offset, shape, shape[-1] * 4, kind, dtype,
            lambda raw: raw.view(np.float32), rows=rows,
        )  # fmt: skip

    def pieces(
        self, start: int, stop: int, elements: float, out: np.ndarray | None = None
    ) -> Iterator[np.ndarray]:
        """Computes rows in pieces of about `elements` numbers: float32 as raw bytes, uint8."""
        assert out is None  # `read_params` passes it only for tensors without `blocks`
        step = max(1, int(min(elements, 1 << 40)) // max(1, math.prod(self.shape[1:])))
        for first in range(start, stop, step):
            yield self.rows(first, min(first + step, stop)).view(np.uint8)


class ParamSource(NamedTuple):
    """The location of one parameter: rows of a tensor, or of one tensor per expert."""

    name: str
    """Path in the parameter tree, as in `named_specs`."""
    spec: ParamSpec
    tensors: tuple[str, ...]
    """Names of the tensors; one per expert if the file stores experts separately."""
    part: tuple[int, ...]
    """Shape of the rows that it takes from each tensor."""
    start: int
    """First of these rows in each tensor."""

    @property
    def last_name(self) -> str:
        """The last component of the parameter's path."""
        return self.name.rpartition(".")[2]


class Checkpoint(NamedTuple):
    """A checkpoint whose headers have been checked. Its tensors are read on demand."""

    location: Path
    config: ModelConfig
    sources: Sequence[ParamSource]
    """One per parameter, in the order of the tree's leaves."""
    stored: Mapping[str, StoredTensor]
    ignored_keys: tuple[str, ...] = ()
    """Unknown keys of `config.json` that the caller chose to ignore."""
    row_order: Callable[[ParamSource], np.ndarray | None] = lambda source: None
    """The parameter's row for each stored row, or None if the order is the same."""

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        """Yields rows `start` to `stop` of a parameter's first axis, in order and in pieces: floats
        as stored, or `QuantArray`s if the tensor has int4 blocks.

        The experts of a layer are one parameter [E, ...], whose rows are the experts.
        """
        source = next(source for source in self.sources if source.name == name)
        if source.part != source.spec.shape:
            n_experts, n_rows, _ = source.spec.shape
            for expert in range(n_experts)[start:stop]:
                tensor, index = divmod(expert, n_experts // len(source.tensors))
                first = index * n_rows
                pieces = _pieces(self.stored[source.tensors[tensor]], first, first + n_rows)
                yield _joined(pieces, None)
            return
        n_rows = source.part[0]
        stop = n_rows if stop is None else stop
        tensor, order = self.stored[source.tensors[0]], self.row_order(source)
        if order is None:
            yield from _pieces(tensor, source.start + start, source.start + stop)
        else:
            whole = _pieces(tensor, source.start, source.start + n_rows)
            yield _joined(whole, np.argsort(order)[start:stop])


def _joined(pieces: Iterator[Any], index: Any) -> Any:
    return jax.tree.map(lambda *parts: np.concatenate(parts)[index], *pieces)


def _pieces(tensor: StoredTensor, start: int, stop: int) -> Iterator[Any]:
    for raw in tensor.pieces(start, stop, _STREAMED_ELEMENTS):
        if tensor.int4 is None:
            yield tensor.decode(raw).reshape(len(raw), *tensor.shape[1:])
        else:
            yield QuantArray(*map(jnp.asarray, tensor.decode_int4(raw)))


def param_sources(config: ModelConfig, names: Names) -> list[ParamSource]:
    """Returns the source of each parameter of `config`, in the order of the tree's leaves.

    Parameters with the same tensor name (fused projections) are consecutive rows of that tensor.
    """
    next_row: dict[tuple[str, ...], int] = defaultdict(int)
    sources = []
    for name, spec in named_specs(config).items():
        layer = int(name.split(".")[1]) if name.startswith("layers.") else -1
        path = name.replace(f".{layer}.", ".{i}.", 1)
        template = checkpoint_name(names, path, routed=is_routed(config, layer))
        stacked = "{e}" in template
        experts = range(spec.shape[0] if stacked else 1)
        tensors = tuple(template.format(i=layer, e=expert) for expert in experts)
        part = spec.shape[1:] if stacked else rows_of(spec.shape)
        sources.append(ParamSource(name, spec, tensors, part, next_row[tensors]))
        next_row[tensors] += part[0]
    return sources


def rows_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of a tensor as a matrix: several stacked matrices become one, with the rows
    of each after the rows of the previous one."""
    return (math.prod(shape[:-1]), shape[-1]) if len(shape) > 2 else shape


def tensor_shapes(sources: Sequence[ParamSource]) -> dict[str, tuple[int, ...]]:
    """Returns the shape that each tensor must have, by name."""
    shapes = {}
    for source in sources:
        shape = (source.start + source.part[0], *source.part[1:])
        shapes.update(dict.fromkeys(source.tensors, shape))
    return shapes


def checked(checkpoint: Checkpoint, kinds: Sequence[str]) -> Checkpoint:
    """Returns the checkpoint after checking that it has the tensors that its model needs.

    Raises ValueError for tensors that are missing, have the wrong shape, or have a kind outside
    `kinds`. Warns about tensors that the model does not read.
    """
    location, stored = checkpoint.location, checkpoint.stored
    shapes = tensor_shapes(checkpoint.sources)
    missing = [name for name in shapes if name not in stored]
    require(not missing, f"{location} lacks {listed(missing)}")
    wrong = [
        f"{name} is {list(stored[name].shape)}, expected {list(shape)}"
        for name, shape in shapes.items()
        if stored[name].shape != shape
    ]
    require(not wrong, f"{location} has tensors of a wrong shape: {listed(wrong)}")
    other = [f"{name} is {stored[name].kind}" for name in shapes if stored[name].kind not in kinds]
    require(not other, f"{location}: {listed(other)}; allowed: {', '.join(kinds)}")
    unread = [name for name in stored if name not in shapes and not name.endswith("inv_freq")]
    if unread:
        warnings.warn(f"{location} holds tensors that no parameter reads: {listed(unread)}",
                      stacklevel=3)  # fmt: skip
    return checkpoint


def listed(items: Sequence[str]) -> str:
    """Returns the first items as text, and the number of remaining ones."""
    more = f" and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return ", ".join(items[:_LISTED]) + more
