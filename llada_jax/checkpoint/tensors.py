"""Reading a checkpoint's parameters into the tree, piece by piece, in the dtype that is wanted."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import ml_dtypes
import numpy as np
from tqdm import tqdm

from llada_jax.checkpoint.sources import (
    Checkpoint,
    ParamSource,
    StoredTensor,
    columns_of,
    path_of,
)
from llada_jax.config import ModelConfig, require
from llada_jax.model.params import ModelParams, ParamSpec, abstract_params
from llada_jax.model.quantize import INT4_GROUP, Bits, QuantArray, quantize

Dtype = Literal["float32", "bfloat16", "int8", "int4"]
_BITS: Mapping[str | None, Bits] = {"int8": 8, "int4": 4}
_ROUTING = ("router", "selection_bias")
_PIECE_ELEMENTS = 1 << 17
_ALIGNMENT = 64
_PROGRESS_BYTES = 1 << 30


def check_dtype(dtype: str | None) -> None:
    """Raises ValueError unless `dtype` is None or a name that checkpoints load as."""
    allowed = (None, *get_args(Dtype))
    require(
        dtype is None or (isinstance(dtype, str) and dtype in allowed),
        f"dtype is {dtype!r}; allowed: {', '.join(map(repr, allowed))}",
    )


def read_params(checkpoint: Checkpoint, dtype: str | None) -> ModelParams:
    """Reads the parameter tree, in the order of its leaves.

    Beyond the parameters themselves it holds one piece of a tensor at a time (on devices other than
    the CPU, one leaf as well). Raises ValueError before it reads where int4 has no whole groups.
    """
    sources, stored = checkpoint.sources, checkpoint.stored
    if dtype == "int4":
        _check_int4_groups(sources)
    embedding = stored[sources[0].tensors[0]].dtype
    width = embedding if dtype is None and embedding is not None else _float_dtype(dtype)
    total = sum(stored[name].row_bytes * each.part[0] for each in sources for name in each.tensors)
    leaves = []
    with tqdm(
        total=total,
        unit="B",
        unit_scale=True,
        desc=checkpoint.location.name,
        disable=total < _PROGRESS_BYTES,
        mininterval=1,
    ) as bar:
        for source in sources:
            pieces = _pieces(source, checkpoint, bar)
            if dtype in _BITS and source.spec.quantizable:
                leaf = _read_quantized(source.spec, len(source.tensors), pieces, _BITS[dtype])
            else:
                found = stored[source.tensors[0]].dtype
                leaf = _read_float(source, pieces, kept_dtype(source.path, found, width))
            leaves.append(jax.block_until_ready(leaf))
    return jax.tree.unflatten(jax.tree.structure(abstract_params(checkpoint.config)), leaves)


def _check_int4_groups(sources: Sequence[ParamSource]) -> None:
    for source in sources:
        require(
            not source.spec.quantizable or source.spec.shape[-1] % INT4_GROUP == 0,
            f"dtype is 'int4', but {source.tensors[0]} has {source.spec.shape[-1]} inputs; "
            f"allowed: a multiple of {INT4_GROUP}",
        )


def _float_dtype(dtype: str | None) -> np.dtype:
    """Returns the float that goes with a dtype: quantized matrices run in bfloat16."""
    return np.dtype(np.float32) if dtype == "float32" else np.dtype(ml_dtypes.bfloat16)


def kept_dtype(path: str, found: np.dtype | None, width: np.dtype) -> np.dtype:
    """Returns the float of a parameter `found` as one, in a model whose others are of `width`."""
    # `route` computes in float32, and a selection bias rounded to bfloat16 takes other experts.
    routing = path.rsplit(".", 1)[-1] in _ROUTING
    return np.dtype(np.float32) if routing and found == np.float32 else width


class _Piece(NamedTuple):
    """Some rows of one tensor: raw, and where they go in the parameter."""

    tensor: int
    rows: Any
    raw: np.ndarray
    stored: StoredTensor


def _pieces(source: ParamSource, checkpoint: Checkpoint, bar: tqdm) -> Iterator[_Piece]:
    order = checkpoint.row_order(source)
    for index, name in enumerate(source.tensors):
        tensor = checkpoint.stored[name]
        step = max(1, _PIECE_ELEMENTS // columns_of(tensor))
        for start in range(0, source.part[0], step):
            stop = min(start + step, source.part[0])
            rows = slice(start, stop) if order is None else order[start:stop]
            raw = tensor.raw(source.start + start, source.start + stop)
            yield _Piece(index, rows, raw, tensor)
            bar.update(raw.nbytes)


def _read_float(source: ParamSource, pieces: Iterator[_Piece], dtype: np.dtype) -> jax.Array:
    out = _empty(source.spec.shape, dtype)
    by_tensor = out.reshape(len(source.tensors), source.part[0], -1)
    for piece in pieces:
        numbers = piece.stored.decode(piece.raw)
        by_tensor[piece.tensor, piece.rows] = numbers.reshape(len(numbers), -1)
    return jax.device_put(out)


def _empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns `np.empty` at an address that JAX takes over on a CPU, instead of copying."""
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
    """Returns parameters in a dtype that they could have been loaded as; None leaves them so.

    Raises ValueError where they are quantized otherwise, or cannot be.
    """
    check_dtype(dtype)
    if dtype is None:
        return params
    width = _float_dtype(dtype)

    def cast(keys: Sequence[Any], spec: ParamSpec, leaf: Any) -> Any:
        path, _ = path_of(keys)
        if isinstance(leaf, QuantArray):
            found = leaf.values.dtype.name
            require(found == dtype, f"dtype is {dtype!r}, but {path} is stored as {found}")
            return leaf
        if dtype in _BITS and spec.quantizable:
            return quantize(np.asarray(leaf), _BITS[dtype])
        return leaf.astype(kept_dtype(path, leaf.dtype, width))

    return jax.tree.map_with_path(cast, abstract_params(config), params)
