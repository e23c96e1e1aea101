"""The header of a GGUF file: metadata, and where each tensor lies, all of it inside the file.

The library's own reader is not used: it makes two objects of each token of a vocabulary, it takes
what lies behind the end of the file for nothing and goes on, and it multiplies dimensions modulo
2^64. This one skips arrays, which no model is described by, and wants the tensors as llama.cpp
wants them: in their order, each aligned, without a gap.
"""

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

from llada_jax.config import require

_VERSIONS = (2, 3)
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_TEXT, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")
_MOST_BYTES = 1 << 25
"""Of a header; vocabulary and merges of Dream take a fifth."""
_MOST_DIMENSIONS = 4


class GgufTensor(NamedTuple):
    """A tensor of the file."""

    name: str
    shape: tuple[int, ...]
    """Rows first."""
    kind: Any
    """Number type, a `gguf.GGMLQuantizationType`."""
    offset: int
    """From the beginning of the file."""
    bytes: int


def read_header(path: Path) -> tuple[dict[str, Any], list[GgufTensor]]:
    """Reads the metadata, without arrays, and the tensors. Raises ValueError that says what is
    wrong with them."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Header(data).read()
        except struct.error as error:
            raise ValueError(f"its header leaves the file: {error}") from error


class _Header:
    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, 0
        self._end = min(len(data), _MOST_BYTES)

    def read(self) -> tuple[dict[str, Any], list[GgufTensor]]:
        magic, version, n_tensors, n_values = self._numbers("4sIQQ")
        require(magic == b"GGUF", f"it begins with {magic!r}")
        require(version & 0xFFFF != 0, "it is big-endian; allowed: little-endian")
        require(version in _VERSIONS, f"its version is {version}; allowed: {_VERSIONS}")
        metadata: dict[str, Any] = {}
        for _ in range(n_values):
            name = self._text()
            require(name not in metadata, f"{name!r} stands there twice")
            metadata[name] = self._value(self._number("I"))
        described = [self._tensor() for _ in range(n_tensors)]
        alignment = metadata.get("general.alignment", 32)
        require(
            type(alignment) is int and alignment > 0 and alignment.bit_count() == 1,
            f"general.alignment is {alignment!r}; allowed: a power of two",
        )
        plain = {name: value for name, value in metadata.items() if value is not None}
        return plain, self._placed(described, alignment)

    def _numbers(self, kinds: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{kinds}", self._data, self._at)
        self._at += struct.calcsize(f"<{kinds}")
        return found

    def _number(self, kind: str) -> Any:
        return self._numbers(kind)[0]

    def _skip(self, count: int) -> int:
        """Returns where so many bytes begin, and goes on behind them."""
        start, self._at = self._at, self._at + count
        require(self._at <= self._end, f"its header takes {self._at} bytes, of {self._end}")
        return start

    def _text(self) -> str:
        start = self._skip(self._number("Q"))
        return self._data[start : self._at].decode()

    def _skip_texts(self, count: int) -> None:
        for _ in range(count):
            self._at += 8 + _LENGTH.unpack_from(self._data, self._at)[0]
            if self._at > self._end:
                self._skip(0)

    def _value(self, kind: int) -> Any:
        if kind != _ARRAY:
            require(kind == _TEXT or kind in _NUMBERS, f"no type of a value is {kind}")
            return self._text() if kind == _TEXT else self._number(_NUMBERS[kind])
        kind, count = self._numbers("IQ")
        require(kind == _TEXT or kind in _NUMBERS, f"no type of an array is {kind}")
        if kind == _TEXT:
            self._skip_texts(count)
        else:
            self._skip(count * struct.calcsize(_NUMBERS[kind]))
        return None

    def _tensor(self) -> tuple[str, tuple[int, ...], Any, int]:
        import gguf

        name, n_dimensions = self._text(), self._number("I")
        require(
            0 < n_dimensions <= _MOST_DIMENSIONS,
            f"{name} has {n_dimensions} dimensions; allowed: 1 to {_MOST_DIMENSIONS}",
        )
        shape = self._numbers(f"{n_dimensions}Q")[::-1]
        kind, offset = self._numbers("IQ")
        return name, shape, gguf.GGMLQuantizationType(kind), offset

    def _placed(
        self, described: list[tuple[str, tuple[int, ...], Any, int]], alignment: int
    ) -> list[GgufTensor]:
        import gguf

        start = at = end = self._at + -self._at % alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in described:
            in_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
            require(
                math.prod(shape) > 0 and shape[-1] % in_block == 0,
                f"{name} is {list(shape)}; allowed: rows of blocks of {in_block}",
            )
            require(name not in tensors, f"{name!r} stands there twice")
            require(start + offset == at, f"{name} is at {offset}; allowed: {at - start}")
            end = at + math.prod(shape) // in_block * block_bytes
            tensors[name] = GgufTensor(name, shape, kind, at, end - at)
            at = end + -end % alignment
        size = len(self._data)
        require(size in (end, at), f"its tensors end at {end} bytes, the file at {size}")
        return list(tensors.values())
