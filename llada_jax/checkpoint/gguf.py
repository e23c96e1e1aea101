"""Reads GGUF files: a header with metadata and tensor descriptions, then the tensors' data.

Supported are llama.cpp's files of LLaDA, LLaDA-MoE, Dream, RND1, Llama and Qwen, in floats or
quantized blocks, and diffuse-cpp's files of LLaDA and Dream. The reader of the package `gguf` is
not used, because it creates two objects per token of the vocabulary, accepts truncated files, and
multiplies dimensions modulo 2^64. This reader skips arrays unless they are requested, and requires
llama.cpp's layout: tensors in order, aligned, without gaps.
"""

import math
import mmap
import struct
from collections.abc import Collection
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from llada_jax.checkpoint.gguf_metadata import (
    config_from_gguf,
    gguf_names,
    rows_are_permuted,
    with_rope_factors,
)
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

_BLOCK_DTYPE = np.dtype(ml_dtypes.bfloat16)
_PERMUTED = ("query", "key", "query_bias", "key_bias")
_VERSIONS = (2, 3)
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_TEXT, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 1 << 25
"""Five times the size of Dream's header, most of which is its vocabulary and merges."""
_MAX_DIMENSIONS = 4


def open_gguf(path: Path, family: str | None = None) -> Checkpoint:
    """Checks the header of a GGUF file, and returns its checkpoint. Needs the extra `gguf`.

    Loaded as int4, matrices in Q4_0 keep their integers and scales. Without a dtype, quantized
    blocks become bfloat16. As float32, they have the values that the package `gguf` computes.

    Raises ImportError without the extra, FileNotFoundError if there is no file, and ValueError for
    a damaged file or a model that is not supported.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    try:
        metadata, stored = read_header(path)
    except ValueError as error:
        raise ValueError(f"{path} is no GGUF file, or is cut short: {error}") from error
    names = gguf_names()
    embedding = names["embedding"]
    require(embedding in stored, f"{path} lacks {embedding}")
    config = config_from_gguf(metadata, stored[embedding].shape[0], family)
    if factors := stored.pop("rope_freqs.weight", None):
        require(factors.kind == "F32", f"{factors.name} is {factors.kind}; allowed: F32")
        rows = factors.pieces(0, factors.shape[0], factors.shape[0])
        config = with_rope_factors(config, np.concatenate([*map(factors.decode, rows)])[:, 0])
    config = config.replace(tied_embeddings=names["head"] not in stored)
    sources = param_sources(config, names)
    unread = sorted(stored.keys() - tensor_shapes(sources).keys())
    require(  # a missing head means tied embeddings only if the model reads all other tensors
        names["head"] in stored or not unread,
        f"{path} lacks {names['head']}, and holds {listed(unread)}, which no parameter reads",
    )
    biases = [name for name in unread if name.endswith(".bias")]
    require(not biases, f"{path} holds {listed(biases)}, which family {config.family!r} lacks")
    checkpoint = Checkpoint(path, config, sources, stored)
    if rows_are_permuted(metadata):
        checkpoint = checkpoint._replace(row_order=partial(_row_order, config))
    return checked(checkpoint, (*FLOATS, *block_kinds()))


@cache
def block_kinds() -> tuple[str, ...]:
    """Returns the block types that the installed package `gguf` can convert to floats."""
    import gguf

    return tuple(kind.name for kind in gguf.GGMLQuantizationType
                 if kind.name not in FLOATS and _decodes(gguf, kind))  # fmt: skip


def _decodes(gguf: Any, kind: Any) -> bool:
    block = np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    try:
        gguf.dequantize(block, kind)
    except NotImplementedError:
        return False
    return True


def _row_order(config: ModelConfig, source: ParamSource) -> np.ndarray | None:
    """Returns the parameter's row for each stored row, or None if the order is the same.

    llama.cpp's converter interleaves the two halves of each head: it stores row i + Dh / 2 after
    row i.
    """
    if source.last_name not in _PERMUTED:
        return None
    rows = np.arange(source.part[0]).reshape(-1, 2, config.head_dim // 2)
    return rows.swapaxes(1, 2).reshape(-1)


def read_header(
    path: Path, arrays: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Reads the metadata, with only the named `arrays`, and the tensor descriptions by name.

    Raises ValueError, whose message does not name the file, for a malformed header."""
    try:
        import gguf
    except ImportError as error:
        raise ImportError("GGUF files need the extra 'gguf' of llada_jax") from error
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Header(data, path, gguf).read(arrays)
        except struct.error as error:
            raise ValueError(f"its header leaves the file: {error}") from error


class _Header:
    """A cursor in the header's bytes, which are read once from start to end."""

    def __init__(self, data: mmap.mmap, path: Path, gguf: Any) -> None:
        self._data, self._path, self._gguf = data, path, gguf
        self._at, self._end = 0, min(len(data), _MAX_HEADER_BYTES)

    def read(self, arrays: Collection[str]) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        magic, version, n_tensors, n_values = self._numbers("4sIQQ")
        require(magic == b"GGUF", f"it begins with {magic!r}")
        require(version & 0xFFFF != 0, "it is big-endian; allowed: little-endian")
        require(version in _VERSIONS, f"its version is {version}; allowed: {_VERSIONS}")
        metadata: dict[str, Any] = {}
        for _ in range(n_values):
            name = self._text()
            require(name not in metadata, f"{name!r} stands there twice")
            metadata[name] = self._value(self._number("I"), name in arrays)
        alignment = metadata.get("general.alignment", 32)
        require(
            type(alignment) is int and alignment > 0 and alignment.bit_count() == 1,
            f"general.alignment is {alignment!r}; allowed: a power of two",
        )
        plain = {name: value for name, value in metadata.items() if value is not None}
        return plain, self._tensors(n_tensors, alignment)

    def _tensors(self, count: int, alignment: int) -> dict[str, StoredTensor]:
        tensors: dict[str, StoredTensor] = {}
        at = end = 0  # relative to the start of the data
        for _ in range(count):
            name, n_dimensions = self._text(), self._number("I")
            require(
                0 < n_dimensions <= _MAX_DIMENSIONS,
                f"{name} has {n_dimensions} dimensions; allowed: 1 to {_MAX_DIMENSIONS}",
            )
            shape = self._numbers(f"{n_dimensions}Q")[::-1]
            number, offset = self._numbers("IQ")
            kind = self._gguf.GGMLQuantizationType(number)
            in_block, block_bytes = self._gguf.GGML_QUANT_SIZES[kind]
            require(
                math.prod(shape) > 0 and shape[-1] % in_block == 0,
                f"{name} is {list(shape)}; allowed: rows of blocks of {in_block}",
            )
            require(name not in tensors, f"{name!r} stands there twice")
            require(offset == at, f"{name} is at {offset}; allowed: {at}")
            rows, size = rows_of(shape), math.prod(shape) // in_block * block_bytes
            tensors[name] = StoredTensor(
                name,
                self._path,
                offset=at,
                shape=rows,
                row_bytes=size // rows[0],
                kind=kind.name,
                dtype=FLOATS.get(kind.name, _BLOCK_DTYPE),
                blocks=None if kind.name in FLOATS else partial(self._gguf.dequantize, qtype=kind),
                int4=_q4_0 if kind.name == "Q4_0" else None,
            )
            end = at + size
            at = end + -end % alignment
        start, whole = self._at + -self._at % alignment, len(self._data)
        ends = start + end
        require(
            whole in (ends, start + at), f"its tensors end at {ends} bytes, the file at {whole}"
        )
        return {n: replace(tensor, offset=start + tensor.offset) for n, tensor in tensors.items()}

    def _numbers(self, kinds: str) -> tuple[Any, ...]:
        numbers = struct.unpack_from(f"<{kinds}", self._data, self._at)
        self._at += struct.calcsize(f"<{kinds}")
        return numbers

    def _number(self, kind: str) -> Any:
        return self._numbers(kind)[0]

    def _skip(self, count: int) -> int:
        """Moves past the next `count` bytes, and returns their start."""
        start, self._at = self._at, self._at + count
        require(self._at <= self._end, f"its header takes {self._at} bytes, of {self._end}")
        return start

    def _text(self) -> str:
        start = self._skip(self._number("Q"))
        return self._data[start : self._at].decode()

    def _value(self, kind: int, keep_array: bool) -> Any:
        if kind != _ARRAY:
            require(kind == _TEXT or kind in _NUMBERS, f"no type of a value is {kind}")
            return self._text() if kind == _TEXT else self._number(_NUMBERS[kind])
        kind, count = self._numbers("IQ")
        require(kind == _TEXT or kind in _NUMBERS, f"no type of an array is {kind}")
        if kind != _TEXT:
            start = self._skip(count * struct.calcsize(_NUMBERS[kind]))
            layout = f"<{count}{_NUMBERS[kind]}"
            return [*struct.unpack_from(layout, self._data, start)] if keep_array else None
        if keep_array:
            return [self._text() for _ in range(count)]
        for _ in range(count):
            self._at += 8 + _LENGTH.unpack_from(self._data, self._at)[0]
            if self._at > self._end:
                self._skip(0)  # raises ValueError
        return None


def _q4_0(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the integers [rows, In] and scales [rows, In / 32] of raw Q4_0 rows.

    A block has 18 bytes: a float16 scale, and 32 integers plus 8 in 4 bits each. Byte i has integer
    i in its low bits and integer i + 16 in its high bits.
    """
    blocks = raw.reshape(len(raw), -1, 18)
    scale = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]
    nibbles = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=-1)
    integers = (nibbles.astype(np.int8) - 8).reshape(len(raw), -1)
    return integers.astype(ml_dtypes.int4), scale.astype(np.float32)
