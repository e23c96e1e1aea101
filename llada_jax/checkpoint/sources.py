"""What a checkpoint's files hold, and where in them each parameter lies.

A file format says what it holds (`StoredTensor`); the parameter tree and the family's names say
what is needed (`ParamSource`). Everything is checked before the first tensor is read. Files are
read, not mapped: mapped pages count as resident memory until the file is closed.
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
    """One tensor of a file, of which rows can be read without the rest."""

    name: str
    file: Path
    offset: int
    shape: tuple[int, ...]
    row_bytes: int
    kind: str  # the format's own name of the number type
    dtype: np.dtype | None
    """What it loads as where no dtype is asked for; None where the kind is not supported."""
    blocks: Callable[[np.ndarray], np.ndarray] | None = None
    """Rows of raw bytes [rows, row_bytes] to floats [rows, columns]; None where they are floats."""
    int4: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None
    """As `blocks`, to int4 and scales, for kinds that are the int4 of `quantize` already."""

    def decode(self, raw: np.ndarray) -> np.ndarray:
        """Returns rows of raw bytes, as `pieces` gives them, as floats [rows, columns].

        Raises ValueError where one is NaN or infinite, which says how many of the tensor are."""
        numbers = self._floats(raw)
        if not all_finite(numbers):
            self._refuse(self._floats)
        return numbers

    def decode_int4(self, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows of raw bytes as int4 and scales. Raises ValueError as `decode`."""
        int4 = self.int4
        assert int4 is not None
        integers, scale = int4(raw)
        if not all_finite(scale):
            self._refuse(lambda rows: int4(rows)[1])
        return integers, scale

    def _floats(self, raw: np.ndarray) -> np.ndarray:
        if self.blocks is not None:
            with np.errstate(invalid="ignore", over="ignore"):  # which `decode` says better
                return self.blocks(raw)
        assert self.dtype is not None  # checked before anything is read
        return raw.view(self.dtype)

    def _refuse(self, floats: Callable[[np.ndarray], np.ndarray]) -> None:
        every = self.pieces(0, self.shape[0], _REFUSED_ELEMENTS)
        require_finite(f"{self.file}: {self.name}", map(floats, every))

    def pieces(
        self, start: int, stop: int, elements: float, out: np.ndarray | None = None
    ) -> Iterator[np.ndarray]:
        """Reads rows `start` to `stop`, uint8 [rows, row_bytes], in pieces of about so many
        numbers; into `out`, which has all these rows, where it is given. Raises ValueError where
        the file ends before."""
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
        """Reads rows at once, uint8 [rows, row_bytes]."""
        return np.concatenate([*self.pieces(start, stop, math.inf)])


@dataclass(frozen=True)
class ComputedTensor(StoredTensor):
    """A tensor of which rows are computed from others as they are read."""

    rows: Callable[[int, int], np.ndarray] = field(kw_only=True)
    """`rows(start, stop)`: float32 [stop - start, columns]."""

    @classmethod
    def of(
        cls,
        like: StoredTensor,
        rows: Callable[[int, int], np.ndarray],
        shape: tuple[int, ...],
        kind: str,
        dtype: np.dtype | None,
    ) -> "ComputedTensor":
        """Returns a tensor of the name and the file of another one."""
        return cls(
            like.name, like.file, like.offset, shape, shape[-1] * 4, kind, dtype, _as_float32,
            rows=rows,
        )  # fmt: skip

    def pieces(
        self, start: int, stop: int, elements: float, out: np.ndarray | None = None
    ) -> Iterator[np.ndarray]:
        """Computes rows in pieces of about so many numbers, uint8 [rows, row_bytes]."""
        assert out is None  # `blocks` is set, so nothing is read to where it will lie
        step = max(1, int(min(elements, 1 << 40)) // max(1, math.prod(self.shape[1:])))
        for first in range(start, stop, step):
            yield self.rows(first, min(first + step, stop)).view(np.uint8)


def _as_float32(raw: np.ndarray) -> np.ndarray:
    return raw.view(np.float32)


class ParamSource(NamedTuple):
    """Where one parameter lies: rows from `start` on of a tensor, or one tensor per expert."""

    name: str  # as in `named_specs`
    spec: ParamSpec
    tensors: tuple[str, ...]
    part: tuple[int, ...]  # shape of what it takes of each tensor
    start: int

    @property
    def last_name(self) -> str:
        """Returns the parameter's name without those of the records that it is in."""
        return self.name.rpartition(".")[2]


class Checkpoint(NamedTuple):
    """A checkpoint that was looked through and checked; tensors are read when one asks for them."""

    location: Path
    config: ModelConfig
    sources: Sequence[ParamSource]  # in the order of the tree's leaves
    stored: Mapping[str, StoredTensor]
    ignored_keys: tuple[str, ...] = ()
    """Unknown keys of `config.json` that the caller chose to ignore."""
    row_order: Callable[[ParamSource], np.ndarray | None] = lambda source: None
    """The row of the parameter that each stored row is; None where they are in order."""

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        """Reads rows of the first axis of a parameter, in order and in pieces, for those who write
        them somewhere else: floats as stored, `QuantArray`s of int4 blocks.

        Experts of a layer are one parameter [E, ...]; its rows are the experts.
        """
        source = next(each for each in self.sources if each.name == name)
        if source.part != source.spec.shape:
            n_experts, n_rows, _ = source.spec.shape
            for expert in range(n_experts)[start:stop]:
                tensor, place = divmod(expert, n_experts // len(source.tensors))
                rows = range(place * n_rows, (place + 1) * n_rows)
                pieces = _pieces(self.stored[source.tensors[tensor]], rows.start, rows.stop)
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
    """Returns where each parameter of `config` lies, in the order of the tree's leaves."""
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
    """Returns the shape of a tensor as rows: the matrices of one that holds several follow on each
    other."""
    return (math.prod(shape[:-1]), shape[-1]) if len(shape) > 2 else shape


def tensor_shapes(sources: Sequence[ParamSource]) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each tensor that the parameters take, by name."""
    shapes = {}
    for source in sources:
        shape = (source.start + source.part[0], *source.part[1:])
        shapes.update(dict.fromkeys(source.tensors, shape))
    return shapes


def checked(checkpoint: Checkpoint, kinds: Sequence[str]) -> Checkpoint:
    """Returns the checkpoint, if it has the tensors that it needs.

    Raises ValueError for tensors that are missing, misshapen or of a kind that is none of `kinds`;
    warns of tensors that the model does not read.
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
    """Returns the first items, and how many more there are."""
    more = f" and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return ", ".join(items[:_LISTED]) + more
