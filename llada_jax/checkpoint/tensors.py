"""Where the parameters lie in a checkpoint's files, and reading them piece by piece.

A file format says what it holds (`Stored`); the parameter tree and the family's names say what is
needed (`Placement`). Everything is checked before the first tensor is read. Files are read, not
mapped: mapped pages count as resident memory until the file is closed.
"""

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import ml_dtypes
import numpy as np
from tqdm import tqdm

from llada_jax.config import ModelConfig, require
from llada_jax.model.families import Names, checkpoint_name
from llada_jax.model.params import ModelParams, ParamSpec, abstract_params
from llada_jax.model.quantize import INT4_GROUP, Bits, QuantArray, quantize

Dtype = Literal["float32", "bfloat16", "int8", "int4"]
_BITS: Mapping[str | None, Bits] = {"int8": 8, "int4": 4}
_ROUTING = ("router", "selection_bias")
_PIECE_ELEMENTS = 1 << 17
_ALIGNMENT = 64
_PROGRESS_BYTES = 1 << 30
_LISTED = 4


@dataclass(frozen=True)
class Stored:
    """One tensor of a file, of which rows can be read without the rest."""

    file: Path
    offset: int
    shape: tuple[int, ...]
    row_bytes: int
    kind: str
    """The format's own name of the number type."""
    dtype: np.dtype | None
    """What it loads as where no dtype is asked for; None where the kind is not supported."""
    decode: Callable[[np.ndarray], np.ndarray]
    """Rows of raw bytes [rows, row_bytes] to floats [rows, columns]."""
    int4: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None
    """Rows of raw bytes to int4 and scales, for kinds that are the int4 of `quantize` already."""

    def raw(self, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop`, uint8 [rows, row_bytes]."""
        count = (stop - start) * self.row_bytes
        data = np.fromfile(self.file, np.uint8, count, offset=self.offset + start * self.row_bytes)
        return data.reshape(stop - start, self.row_bytes)


def view_as(dtype: np.dtype | None, raw: np.ndarray) -> np.ndarray:
    """`Stored.decode` of plain numbers."""
    return raw.view(dtype)  # pyright: ignore (never None where it is called)


class Placement(NamedTuple):
    """Where one parameter lies: rows from `start` on of a tensor, or one tensor per expert."""

    path: str
    spec: ParamSpec
    tensors: tuple[str, ...]
    part: tuple[int, ...]
    """Shape of what it takes of each tensor."""
    start: int


RowOrder = Callable[[Placement], np.ndarray | None]
"""The row of the parameter that each stored row is; None where they are in order."""


def check_dtype(dtype: str | None) -> None:
    """Raise ValueError unless `dtype` is None or a name that checkpoints load as."""
    if dtype is not None:
        allowed = ", ".join(map(repr, get_args(Dtype)))
        require(
            isinstance(dtype, str) and dtype in get_args(Dtype),
            f"dtype is {dtype!r}; allowed: None, {allowed}",
        )


def placements(config: ModelConfig, names: Names) -> list[Placement]:
    """The parameters of `config`, in the order of the tree's leaves, and where each one lies."""
    next_row: dict[tuple[str, ...], int] = defaultdict(int)
    placed = []
    for keys, spec in jax.tree.leaves_with_path(abstract_params(config)):
        path, layer = _path_of(keys)
        routed = config.moe is not None and layer >= config.moe.first_layer
        template = checkpoint_name(names, path, routed=routed)
        stacked = "{e}" in template
        experts = range(spec.shape[0] if stacked else 1)
        tensors = tuple(template.format(i=layer, e=expert) for expert in experts)
        part = spec.shape[1:] if stacked else spec.shape
        placed.append(Placement(path, spec, tensors, part, next_row[tensors]))
        next_row[tensors] += part[0]
    return placed


def _path_of(keys: Sequence[Any]) -> tuple[str, int]:
    """The path with `{i}` for the layer's number, and the number (-1 outside the layers)."""
    names = [key.name if hasattr(key, "name") else "{i}" for key in keys]
    layer = next((key.idx for key in keys if hasattr(key, "idx")), -1)
    return ".".join(names), layer


def tensor_shapes(placed: Sequence[Placement]) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor of the checkpoint, by name."""
    shapes = {}
    for place in placed:
        shape = (place.start + place.part[0], *place.part[1:])
        shapes.update(dict.fromkeys(place.tensors, shape))
    return shapes


def check_tensors(
    placed: Sequence[Placement],
    stored: Mapping[str, Stored],
    dtype: str | None,
    source: Path,
    kinds: Sequence[str],
) -> None:
    """Raise ValueError for tensors that are missing, misshapen or of an unsupported kind.

    Warns of tensors that the model does not read.
    """
    shapes = tensor_shapes(placed)
    missing = [name for name in shapes if name not in stored]
    require(not missing, f"{source} lacks {_listed(missing)}")
    wrong = [
        f"{name} is {list(stored[name].shape)}, expected {list(shape)}"
        for name, shape in shapes.items()
        if stored[name].shape != shape
    ]
    require(not wrong, f"{source} has tensors of a wrong shape: {_listed(wrong)}")
    unsupported = [
        f"{name} is {stored[name].kind}" for name in shapes if stored[name].dtype is None
    ]
    require(not unsupported, f"{source}: {_listed(unsupported)}; allowed: {', '.join(kinds)}")
    if dtype == "int4":
        _check_int4_groups(placed)
    unread = [name for name in stored if name not in shapes and not name.endswith("inv_freq")]
    if unread:
        warnings.warn(f"{source} holds tensors that no parameter reads: {_listed(unread)}",
                      stacklevel=3)  # fmt: skip


def _check_int4_groups(placed: Sequence[Placement]) -> None:
    for place in placed:
        require(
            not place.spec.quantizable or place.spec.shape[-1] % INT4_GROUP == 0,
            f"dtype is 'int4', but {place.tensors[0]} has {place.spec.shape[-1]} inputs; allowed: "
            f"a multiple of {INT4_GROUP}",
        )


def _listed(items: Sequence[str]) -> str:
    more = f" and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return ", ".join(items[:_LISTED]) + more


def read_params(
    config: ModelConfig,
    placed: Sequence[Placement],
    stored: Mapping[str, Stored],
    dtype: str | None,
    source: Path,
    row_order: RowOrder = lambda place: None,
) -> ModelParams:
    """The parameter tree, read in the order of its leaves.

    Beyond the parameters themselves it holds one piece of a tensor at a time (on devices other than
    the CPU, one leaf as well).
    """
    embedding = stored[placed[0].tensors[0]].dtype
    width = embedding if dtype is None and embedding is not None else _float_dtype(dtype)
    total = sum(
        stored[name].row_bytes * place.part[0] for place in placed for name in place.tensors
    )
    leaves = []
    with tqdm(
        total=total,
        unit="B",
        unit_scale=True,
        desc=source.name,
        disable=total < _PROGRESS_BYTES,
        mininterval=1,
    ) as bar:
        for place in placed:
            pieces = _pieces(place, stored, row_order(place), bar)
            if dtype in _BITS and place.spec.quantizable:
                leaf = _read_quantized(place.spec, len(place.tensors), pieces, _BITS[dtype])
            else:
                leaf = _read_float(place, stored, pieces, width)
            leaves.append(jax.block_until_ready(leaf))
    return jax.tree.unflatten(jax.tree.structure(abstract_params(config)), leaves)


def _float_dtype(dtype: str | None) -> np.dtype:
    """The float that goes with a dtype: quantized matrices run with bfloat16 activations."""
    return np.dtype(np.float32) if dtype == "float32" else np.dtype(ml_dtypes.bfloat16)


def kept_dtype(path: str, found: np.dtype | None, width: np.dtype) -> np.dtype:
    """The float of a parameter that is `found` as one, in a model whose others are of `width`."""
    # `route` computes in float32, and a selection bias rounded to bfloat16 takes other experts.
    routing = path.rsplit(".", 1)[-1] in _ROUTING
    return np.dtype(np.float32) if routing and found == np.float32 else width


class _Piece(NamedTuple):
    """Some rows of one tensor: raw, and where they go in the parameter."""

    tensor: int
    rows: Any
    raw: np.ndarray
    stored: Stored


def _pieces(
    place: Placement, stored: Mapping[str, Stored], order: np.ndarray | None, bar: tqdm
) -> Iterator[_Piece]:
    for index, name in enumerate(place.tensors):
        tensor = stored[name]
        step = max(1, _PIECE_ELEMENTS // math.prod(tensor.shape[1:]))
        for start in range(0, place.part[0], step):
            stop = min(start + step, place.part[0])
            rows = slice(start, stop) if order is None else order[start:stop]
            raw = tensor.raw(place.start + start, place.start + stop)
            yield _Piece(index, rows, raw, tensor)
            bar.update(raw.nbytes)


def _read_float(
    place: Placement, stored: Mapping[str, Stored], pieces: Iterator[_Piece], width: np.dtype
) -> jax.Array:
    out = _empty(place.spec.shape, kept_dtype(place.path, stored[place.tensors[0]].dtype, width))
    by_tensor = out.reshape(len(place.tensors), place.part[0], -1)
    for piece in pieces:
        numbers = piece.stored.decode(piece.raw)
        by_tensor[piece.tensor, piece.rows] = numbers.reshape(len(numbers), -1)
    return jax.device_put(out)


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """`np.empty` at an address that JAX takes over on a CPU, instead of making a copy."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def _read_quantized(
    spec: ParamSpec, n_tensors: int, pieces: Iterator[_Piece], bits: Bits
) -> QuantArray:
    columns = spec.shape[-1]
    groups = 1 if bits == 8 else columns // INT4_GROUP
    values = _empty(spec.shape, np.dtype(np.int8 if bits == 8 else ml_dtypes.int4))
    scale = _empty((*spec.shape[:-1], groups), np.dtype(np.float32))
    values_by_tensor = values.reshape(n_tensors, -1, columns)
    scale_by_tensor = scale.reshape(n_tensors, -1, groups)
    for piece in pieces:
        if bits == 4 and piece.stored.int4 is not None:
            part = piece.stored.int4(piece.raw)
        else:
            part = quantize(piece.stored.decode(piece.raw), bits)
        values_by_tensor[piece.tensor, piece.rows] = part[0]
        scale_by_tensor[piece.tensor, piece.rows] = part[1]
    return QuantArray(jax.device_put(values), jax.device_put(scale))


def cast_params(config: ModelConfig, params: ModelParams, dtype: str | None) -> ModelParams:
    """The parameters in a dtype that they could have been loaded as; None leaves them as they are.

    Raises ValueError where they are quantized otherwise, or cannot be.
    """
    check_dtype(dtype)
    if dtype is None:
        return params
    width = _float_dtype(dtype)

    def cast(keys: Sequence[Any], spec: ParamSpec, leaf: Any) -> Any:
        path, _ = _path_of(keys)
        if isinstance(leaf, QuantArray):
            found = leaf.values.dtype.name
            require(found == dtype, f"dtype is {dtype!r}, but {path} is stored as {found}")
            return leaf
        if dtype in _BITS and spec.quantizable:
            return quantize(np.asarray(leaf), _BITS[dtype])
        return leaf.astype(kept_dtype(path, leaf.dtype, width))

    return jax.tree.map_with_path(cast, abstract_params(config), params)
