"""Headers of GGUF files: damage is refused, or read as the library reads it."""

import struct
import warnings
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from llada_jax.checkpoint import gguf as headers
from llada_jax.checkpoint.gguf import read_header

TENSORS = {
    "first": np.arange(64, dtype=np.float32).reshape(2, 32),
    "odd": np.arange(5, dtype=np.float32),
    "b": np.arange(128, dtype=np.float16).reshape(4, 32),
}


def write(path: Path, alignment: int | None = None) -> bytes:
    out = gguf.GGUFWriter(path, "llada")
    if alignment is not None:
        out.add_custom_alignment(alignment)
    out.add_block_count(3)
    out.add_rope_freq_base(10000.0)
    out.add_token_list(["a", "bc", ""])
    out.add_array("numbers", [1, 2, 3])
    out.add_bool("yes", True)
    out.add_string("name", "Lladä")
    for name, tensor in TENSORS.items():
        out.add_tensor(name, tensor)
    out.add_tensor("again", TENSORS["odd"])
    blocks = gguf.quants.quantize(TENSORS["first"], gguf.GGMLQuantizationType.Q8_0)
    out.add_tensor("blocks", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tmp_path_factory.mktemp("whole") / "whole.gguf")


def places(path: Path) -> dict[str, tuple]:
    tensors = read_header(path)[1].values()
    return {t.name: (t.shape, t.kind, t.offset, t.shape[0] * t.row_bytes) for t in tensors}


def places_of_the_library(path: Path) -> dict[str, tuple] | None:
    try:
        with warnings.catch_warnings(action="ignore"):
            tensors = gguf.GGUFReader(path).tensors
    except (ValueError, IndexError, KeyError, OverflowError):
        return None
    return {
        t.name: (tuple(map(int, t.shape[::-1])), t.tensor_type.name, t.data_offset, t.n_bytes)
        for t in tensors
    }


@pytest.mark.parametrize("alignment", [None, 8, 64])
def test_metadata_and_places(alignment: int | None, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(path, alignment)
    metadata, _ = read_header(path)
    metadata.pop("general.alignment", None)
    assert metadata == {
        "general.architecture": "llada",
        "llada.block_count": 3,
        "llada.rope.freq_base": 10000.0,
        "yes": True,
        "name": "Lladä",
    }
    assert places(path) == places_of_the_library(path)


def info(whole: bytes, name: str, n_dimensions: int) -> int:
    """The offset of a tensor's dimensions; its kind and its data offset follow them."""
    text = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", n_dimensions)
    return whole.index(text) + len(text)


def put(kind: str, place: int, *values: int) -> Callable[[bytes], bytes]:
    def replace(whole: bytes) -> bytes:
        content = struct.pack(f"<{kind}", *values)
        return whole[:place] + content + whole[place + len(content) :]

    return replace


def in_info(name: str, n_dims: int, skip: int, kind: str, *values: int) -> Callable[[bytes], bytes]:
    return lambda whole: put(kind, info(whole, name, n_dims) + skip, *values)(whole)


def behind(text: bytes, kind: str, *values: int) -> Callable[[bytes], bytes]:
    return lambda whole: put(kind, whole.index(text) + len(text), *values)(whole)


MUTATIONS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "magic": (put("4B", 0, 1, 2, 3, 4), "it begins with"),
    "version": (put("I", 4, 1), "its version is 1; allowed"),
    "big-endian": (put("I", 4, 3 << 24), "it is big-endian"),
    "tensors": (put("Q", 8, 2**60), "its header leaves the file|takes|dimensions"),
    "a tensor less": (put("Q", 8, 3), "its tensors end at"),
    "values": (put("Q", 16, 2**60), "header|no type of a value|twice"),
    "a value less": (put("Q", 16, 6), "."),
    "aliased": (in_info("b", 2, 20, "Q", 0), "b is at 0; allowed: 288"),
    "a gap": (in_info("b", 2, 20, "Q", 320), "b is at 320; allowed: 288"),
    "not aligned": (in_info("b", 2, 20, "Q", 289), "b is at 289; allowed: 288"),
    "an offset that wraps": (in_info("b", 2, 20, "Q", 2**64 - 32), "b is at 184467"),
    "an offset beyond the end": (in_info("b", 2, 20, "Q", 2**40), "b is at 1099511627776"),
    "dimensions that wrap": (in_info("first", 2, 0, "QQ", 32, 2**59 + 2), "odd is at 256; allowed"),
    "no rows": (in_info("first", 2, 0, "QQ", 32, 0), r"first is \[0, 32\]; allowed"),
    "more rows": (in_info("blocks", 2, 0, "QQ", 32, 3), "its tensors end at"),
    "half a block": (in_info("blocks", 2, 0, "QQ", 16, 4), r"blocks is \[4, 16\]; allowed"),
    "no dimensions": (in_info("first", 2, -4, "I", 0), "first has 0 dimensions; allowed: 1 to 4"),
    "too many dimensions": (in_info("first", 2, -4, "I", 2**31), "first has 2147483648 dimensions"),
    "an unknown kind": (in_info("first", 2, 16, "I", 999), "999 is not a valid GGML"),
    "a wider kind": (in_info("b", 2, 16, "I", 0), "again is at 544; allowed: 800"),
    "a name twice": (lambda whole: whole.replace(b"again", b"first"), "'first' stands there twice"),
    "a key twice": (lambda whole: whole.replace(b"general.architecture", b"llada.rope.freq_base"),
                    "'llada.rope.freq_base' stands there twice"),
    "no UTF-8": (lambda whole: whole.replace("ä".encode(), b"\xff\xff"), "utf-8"),
    "a long text": (behind(b"name", "IQ", 8, 2**62), "its header takes"),
    "a value of no type": (behind(b"yes", "I", 13), "no type of a value is 13"),
    "an array of no type": (behind(b"numbers", "II", 9, 9), "no type of an array is 9"),
    "a long array": (behind(b"numbers", "IIQ", 9, 5, 2**62), "its header takes"),
    "an array that wraps": (behind(b"numbers", "IIQ", 9, 5, 2**64 - 1), "its header takes"),
    "many texts": (behind(b"tokenizer.ggml.tokens", "IIQ", 9, 8, 2**62), "header"),
    "cut short": (lambda whole: whole[:-33], "its tensors end at"),
    "more behind it": (lambda whole: whole + bytes(64), "its tensors end at"),
}  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_damaged_header(mutation: str, whole: bytes, tmp_path: Path) -> None:
    mutate, message = MUTATIONS[mutation]
    content = mutate(whole)
    assert content != whole
    (tmp_path / "model.gguf").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_header(tmp_path / "model.gguf")


@pytest.mark.parametrize("alignment", [1, 16, 64, 128, 0, 3])
def test_another_alignment_shifts_no_tensor(alignment: int, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    whole = write(path, 32)
    path.write_bytes(behind(b"general.alignment", "II", 4, alignment)(whole))
    with pytest.raises(ValueError, match=r"allowed|its tensors end at"):
        read_header(path)


@pytest.mark.parametrize("flipped", [0x01, pytest.param(0x40, marks=pytest.mark.slow)])
def test_any_flipped_byte(flipped: int, whole: bytes, tmp_path: Path) -> None:
    """The library reads accepted files at the same offsets."""
    path, refused = tmp_path / "model.gguf", 0
    path.write_bytes(whole)
    data = read_header(path)[1]["first"].offset
    for place in range(data):
        content = bytearray(whole)
        content[place] ^= flipped
        path.write_bytes(content)
        try:
            found = places(path)
        except ValueError:
            refused += 1
        else:
            assert found == places_of_the_library(path)
    assert refused > data / 3


def test_a_file_with_only_strings(
    whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers are limited: this one would contain a billion empty strings."""
    monkeypatch.setattr(headers, "_MAX_HEADER_BYTES", 2**16)
    start = whole.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens")
    with (tmp_path / "model.gguf").open("wb") as file:
        file.write(whole[:start] + struct.pack("<IIQ", 9, 8, 2**30))
        file.truncate(2**33)
    with pytest.raises(ValueError, match=r"its header takes 655\d+ bytes, of 65536"):
        read_header(tmp_path / "model.gguf")
