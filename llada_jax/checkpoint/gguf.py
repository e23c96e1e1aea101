"""GGUF files of llama.cpp: LLaDA, LLaDA-MoE, Dream and RND1, in floats or in blocks of integers;
and diffuse-cpp's of LLaDA and Dream."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from llada_jax.checkpoint.gguf_header import GgufTensor, read_header
from llada_jax.checkpoint.sources import (
    FLOATS,
    Checkpoint,
    ParamSource,
    StoredTensor,
    checked,
    listed,
    param_sources,
    rows_of,
    tensor_shapes,
)
from llada_jax.config import ModelConfig, require
from llada_jax.model.families.gguf_metadata import (
    config_from_gguf,
    gguf_names,
    rows_are_permuted,
)

BLOCKS = ("Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0", "IQ4_XS", "IQ4_NL")
_KINDS: Mapping[str, np.dtype] = {
    **FLOATS,
    **dict.fromkeys(BLOCKS, np.dtype(ml_dtypes.bfloat16)),
}
_PERMUTED = ("query", "key", "query_bias", "key_bias")


def open_gguf(path: Path) -> Checkpoint:
    """Looks a file of one of llama.cpp's architectures through. Needs the extra `gguf`.

    As int4, matrices in Q4_0 keep their integers and scales; as stored, blocks become bfloat16, and
    as float32 they are the values of the package `gguf`.

    Raises ImportError without the extra, and FileNotFoundError or ValueError.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    metadata, stored = _contents(path)
    names = gguf_names()
    embedding = names["embedding"]
    require(embedding in stored, f"{path} lacks {embedding}")
    config = config_from_gguf(metadata, stored[embedding].shape[0])
    config = config.replace(tied_embeddings=names["head"] not in stored)
    sources = param_sources(config, names)
    unread = sorted(stored.keys() - tensor_shapes(sources).keys())
    require(  # of a file without it, all that llama.cpp wrote is read
        names["head"] in stored or not unread,
        f"{path} lacks {names['head']}, and holds {listed(unread)}, which no parameter reads",
    )
    checkpoint = Checkpoint(path, config, sources, stored)
    if rows_are_permuted(metadata, config):
        checkpoint = checkpoint._replace(row_order=partial(_row_order, config))
    return checked(checkpoint, tuple(_KINDS))


def _row_order(config: ModelConfig, source: ParamSource) -> np.ndarray | None:
    """Returns where stored rows came from: the converter put row i + Dh / 2 of a head after i."""
    if source.last_name not in _PERMUTED:
        return None
    rows = np.arange(source.part[0]).reshape(-1, 2, config.head_dim // 2)
    return rows.swapaxes(1, 2).reshape(-1)


def _contents(path: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    try:
        import gguf
    except ImportError as error:
        raise ImportError("GGUF files need the extra 'gguf' of llada_jax") from error
    try:
        metadata, tensors = read_header(path)
    except ValueError as error:
        raise ValueError(f"{path} is no GGUF file, or is cut short: {error}") from error
    return metadata, {tensor.name: _stored(gguf, path, tensor) for tensor in tensors}


def _stored(gguf: ModuleType, path: Path, tensor: GgufTensor) -> StoredTensor:
    kind, shape = tensor.kind.name, rows_of(tensor.shape)
    return StoredTensor(
        tensor.name,
        path,
        offset=tensor.offset,
        shape=shape,
        row_bytes=tensor.bytes // shape[0],
        kind=kind,
        dtype=_KINDS.get(kind),
        blocks=None if kind in FLOATS else partial(gguf.dequantize, qtype=tensor.kind),
        int4=_q4_0 if kind == "Q4_0" else None,
    )


def _q4_0(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the integers [rows, In] and scales [rows, In / 32] of blocks of 18 bytes.

    A block is a float16 scale and 32 integers, biased by 8; byte i holds integers i and i + 16.
    """
    blocks = raw.reshape(len(raw), -1, 18)
    scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
    nibbles = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=-1)
    integers = (nibbles.astype(np.int8) - 8).reshape(len(raw), -1)
    return integers.astype(ml_dtypes.int4), scale.astype(np.float32)
