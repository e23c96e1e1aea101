"""GGUF files of llama.cpp: LLaDA and Dream, in floats or in the blocks of Q8_0 and Q4_0."""

from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from llada_jax.checkpoint.streamed import StreamedParams
from llada_jax.checkpoint.tensors import (
    Placement,
    Stored,
    check_dtype,
    check_tensors,
    placements,
    read_params,
    view_as,
)
from llada_jax.config import ModelConfig, require
from llada_jax.model.families import FAMILIES, GGUF_NAMES, config_from_gguf
from llada_jax.model.params import ModelParams

_FLOATS: Mapping[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_KINDS: Mapping[str, np.dtype] = {
    **_FLOATS,
    "Q8_0": np.dtype(ml_dtypes.bfloat16),
    "Q4_0": np.dtype(ml_dtypes.bfloat16),
}
_PERMUTED = ("query", "key", "query_bias", "key_bias")


def load_gguf(
    path: str | PathLike[str], dtype: str | None = None
) -> tuple[ModelConfig, ModelParams]:
    """Load a GGUF file of architecture `llada` or `dream`. Needs the extra `gguf`.

    Args:
      path: tensors of F32, F16, BF16, Q8_0 or Q4_0.
      dtype: as in `load_huggingface`; None takes the embedding's own float, and bfloat16 for
        blocks. "int4" keeps the integers and scales of Q4_0; all else is quantized anew.

    Raises ImportError without the extra, FileNotFoundError or ValueError before any tensor is read.
    """
    check_dtype(dtype)
    config, placed, stored = _checked(Path(path), dtype)
    row_order = partial(_row_order, config)
    return config, read_params(config, placed, stored, dtype, Path(path), row_order)


def stream_gguf(path: str | PathLike[str]) -> tuple[ModelConfig, StreamedParams]:
    """As `load_gguf`, but nothing is read yet."""
    config, placed, stored = _checked(Path(path), None)
    return config, StreamedParams(config, placed, stored, partial(_row_order, config))


def _checked(
    path: Path, dtype: str | None
) -> tuple[ModelConfig, list[Placement], dict[str, Stored]]:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    metadata, stored = _contents(path)
    embedding = GGUF_NAMES["embedding"]
    require(embedding in stored, f"{path} lacks {embedding}")
    config = config_from_gguf(metadata, stored[embedding].shape[0])
    config = config.replace(tied_embeddings=GGUF_NAMES["head"] not in stored)
    placed = placements(config, GGUF_NAMES)
    check_tensors(placed, stored, dtype, path, tuple(_KINDS))
    return config, placed, stored


def _row_order(config: ModelConfig, place: Placement) -> np.ndarray | None:
    """Where each stored row came from: the converter put row i + Dh / 2 of a head after row i."""
    permuted = place.path.rsplit(".", 1)[-1] in _PERMUTED
    if not (permuted and FAMILIES[config.family].gguf_permuted):
        return None
    rows = np.arange(place.part[0]).reshape(-1, 2, config.head_dim // 2)
    return rows.swapaxes(1, 2).reshape(-1)


def _gguf() -> ModuleType:
    try:
        import gguf
    except ImportError as error:
        raise ImportError("GGUF files need the extra 'gguf' of llada_jax") from error
    return gguf


def _contents(path: Path) -> tuple[dict[str, Any], dict[str, Stored]]:
    gguf = _gguf()
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise ValueError(f"{path} is no GGUF file, or is cut short: {error}") from error
    require(reader.byte_order == "I", f"{path} is big-endian; allowed: little-endian")
    metadata = {
        name: field.contents()
        for name, field in reader.fields.items()
        if field.types and field.types[0] != gguf.GGUFValueType.ARRAY
    }
    return metadata, {tensor.name: _stored(gguf, path, tensor) for tensor in reader.tensors}


def _stored(gguf: ModuleType, path: Path, tensor: Any) -> Stored:
    shape = tuple(int(length) for length in reversed(tensor.shape))
    kind = tensor.tensor_type.name
    decode: Callable[[np.ndarray], np.ndarray]
    if kind in _FLOATS:
        decode = partial(view_as, _FLOATS[kind])
    else:
        decode = partial(gguf.dequantize, qtype=tensor.tensor_type)
    return Stored(
        path,
        offset=int(tensor.data_offset),
        shape=shape,
        row_bytes=int(tensor.n_bytes) // shape[0],
        kind=kind,
        dtype=_KINDS.get(kind),
        decode=decode,
        int4=_q4_0 if kind == "Q4_0" else None,
    )


def _q4_0(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integers [rows, In] and scales [rows, In / 32] of blocks of 18 bytes.

    A block is a float16 scale and 32 integers, biased by 8; byte i holds integers i and i + 16.
    """
    blocks = raw.reshape(len(raw), -1, 18)
    scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
    nibbles = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=-1)
    integers = (nibbles.astype(np.int8) - 8).reshape(len(raw), -1)
    return integers.astype(ml_dtypes.int4), scale.astype(np.float32)
