"""Safetensors: files that the library refuses are refused, and an index is obeyed."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load, load_file, save_file

from llada_jax.checkpoint.huggingface import stored_tensors
from llada_jax.checkpoint.sources import StoredTensor
from llada_jax.config.checks import read_object

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": -np.arange(6, dtype=np.float32).reshape(2, 3),
    "c": np.arange(4, dtype=np.float16),
    "none": np.zeros((0, 3), np.float32),
    "scalar": np.array(3.5, np.float32),
}
Header = dict[str, Any]


def packed(header: bytes | Header, data: bytes, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def parts(content: bytes) -> tuple[Header, bytes]:
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / WEIGHTS
    save_file(TENSORS, path, metadata={"format": "pt"})
    return path.read_bytes()


def loaded(folder: Path, content: bytes) -> dict[str, np.ndarray]:
    (folder / WEIGHTS).write_bytes(content)
    found = stored_tensors(folder)
    return {name: values(tensor) for name, tensor in found.items()}


def values(tensor: StoredTensor) -> np.ndarray:
    memory = np.empty((rows(tensor.shape), tensor.row_bytes), np.uint8)
    for _ in tensor.pieces(0, len(memory), 4, memory):
        pass
    return tensor.decode(memory).reshape(tensor.shape)


def rows(shape: tuple[int, ...]) -> int:
    return shape[0] if shape else 1


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].dtype == each.dtype and np.array_equal(found[name], each)
        for name, each in expected.items()
    )


def changed(**change: Any) -> Callable[[Header, bytes], bytes]:
    """A file with another description of tensor `a`."""
    return lambda header, data: packed({**header, "a": {**header["a"], **change}}, data)


def swapped(header: Header, data: bytes) -> bytes:
    a, b = header["a"], header["b"]
    offsets = {"data_offsets": a["data_offsets"]}
    return packed({**header, "a": {**a, "data_offsets": b["data_offsets"]}, "b": b | offsets}, data)


def shifted(by: int) -> Callable[[Header, bytes], bytes]:
    def shift(header: Header, data: bytes) -> bytes:
        moved = {
            name: each
            if name == "__metadata__"
            else {**each, "data_offsets": [offset + by for offset in each["data_offsets"]]}
            for name, each in header.items()
        }
        return packed(moved, data)

    return shift


def of_length(change: int) -> Callable[[Header, bytes], bytes]:
    def write(header: Header, data: bytes) -> bytes:
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8 + 8)
        return packed(text, data, len(text) + change)

    return write


def twice(header: Header, data: bytes) -> bytes:
    """The name `a` occurs twice: first with the offsets of `b`, then with its offsets."""
    other = json.dumps({**header["a"], "data_offsets": header["b"]["data_offsets"]})
    return packed(f'{{"a": {other}, {json.dumps(header)[1:]}'.encode(), data)


def field_twice(header: Header, data: bytes) -> bytes:
    text = json.dumps(header).replace('"shape": [2, 3]', '"shape": [2, 3], "shape": [3, 2]', 1)
    return packed(text.encode(), data)


def deep(header: Header, data: bytes) -> bytes:
    text = json.dumps({**header, "a": {**header["a"], "deep": 0}})
    nested = "[" * 100_000 + "]" * 100_000
    return packed(text.replace('"deep": 0', f'"deep": {nested}').encode(), data)


MUTATIONS: dict[str, Callable[[Header, bytes], bytes]] = {
    "aliased": lambda header, data: packed({**header, "a": header["b"]}, data),
    "swapped": swapped,
    "negative": changed(data_offsets=[-24, 0]),
    "reversed": changed(data_offsets=[24, 0]),
    "empty": changed(data_offsets=[0, 0]),
    "three offsets": changed(data_offsets=[0, 24, 48]),
    "no offsets": changed(data_offsets=[]),
    "offsets of text": changed(data_offsets=["0", "24"]),
    "offsets beyond 64 bits": changed(data_offsets=[2**64, 2**64 + 24]),
    **{f"shifted by {by}": shifted(by) for by in (-4, -1, 1, 4, 8, 2**63)},
    **{f"length {change:+}": of_length(change) for change in (-100, -8, -1, 1, 8, 100, 2**40)},
    "a hole": lambda header, data: packed({**header, "d": {**header["a"], "data_offsets": [
        len(data) + 8, len(data) + 32]}}, data + bytes(32)),
    "more data": lambda header, data: packed(header, data + b"\0"),
    "less data": lambda header, data: packed(header, data[:-1]),
    "no data": lambda header, data: packed(header, b""),
    "a tensor less": lambda header, data: packed(
        {name: each for name, each in header.items() if name != "a"}, data),
    "twice": twice,
    "a field twice": field_twice,
    "deep": deep,
    "another shape": changed(shape=[3, 2]),
    "a negative shape": changed(shape=[-2, -3]),
    "a shape that wraps": changed(shape=[2**62 + 2, 3 * 2**2]),
    "a shape of floats": changed(shape=[2.0, 3]),
    "a shape of truths": changed(shape=[True, 6]),
    "no shape": changed(shape=None),
    "another type of the size": changed(dtype="I32"),
    "another type": changed(dtype="F16"),
    "an unknown type": changed(dtype="F33"),
    "unknown fields": changed(colour=3),
    "metadata of numbers": lambda header, data: packed({**header, "__metadata__": {"a": 3}}, data),
    "a list": lambda header, data: packed(b"[]", data),
    "null": lambda header, data: packed(b"null", data),
    "no JSON": lambda header, data: packed(b"{", data),
    "no UTF-8": lambda header, data: packed(json.dumps(header).encode() + b"\xff", data),
    "a mark before it": lambda header, data: packed(
        b"\xef\xbb\xbf" + json.dumps(header).encode(), data),
    "NaN": lambda header, data: packed(
        json.dumps({**header, "a": {**header["a"], "x": float("nan")}}).encode(), data),
    "spaces": lambda header, data: packed(b" " + json.dumps(header).encode() + b"  ", data),
    "nothing": lambda header, data: b"",
    "a byte": lambda header, data: b"\0",
}  # fmt: skip


DIFFERENTIAL = {
    k: v for k, v in MUTATIONS.items() if k not in ("twice", "another type of the size")
}


def read_by_the_library(content: bytes) -> dict[str, np.ndarray] | None:
    try:
        return load(content)
    except (SafetensorError, KeyError, TypeError):  # the last two: no such type in NumPy
        return None


@pytest.mark.parametrize(
    "mutation", sorted(MUTATIONS.keys() - {"twice", "another type of the size"})
)
def test_files_that_the_library_refuses_are_refused(
    mutation: str, whole: bytes, tmp_path: Path
) -> None:
    content = MUTATIONS[mutation](*parts(whole))
    expected = read_by_the_library(content)
    if expected is not None:
        assert same(loaded(tmp_path, content), expected)
        return
    (tmp_path / WEIGHTS).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{WEIGHTS} is no safetensors file, or is cut short: ."):
        stored_tensors(tmp_path)


def test_a_name_that_occurs_twice(whole: bytes, tmp_path: Path) -> None:
    """The library takes the last one."""
    content = twice(*parts(whole))
    assert read_by_the_library(content) is not None
    (tmp_path / WEIGHTS).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{WEIGHTS} is no saf.*: 'a' stands there twice"):
        stored_tensors(tmp_path)


def test_most_mutations_are_refused(whole: bytes, tmp_path: Path) -> None:
    """Without this check the differential test would also pass if both accepted everything."""
    accepted = []
    for name, mutation in MUTATIONS.items():
        (tmp_path / WEIGHTS).write_bytes(mutation(*parts(whole)))
        try:
            stored_tensors(tmp_path)
        except ValueError:
            continue
        accepted.append(name)
    assert accepted == [
        "swapped", "another shape", "another type of the size", "unknown fields", "spaces",
    ]  # fmt: skip


@pytest.mark.parametrize("flipped", [0x01, 0x20, 0x80])
def test_any_flipped_byte_of_the_header(flipped: int, whole: bytes, tmp_path: Path) -> None:
    """Files that the library refuses are refused; others give the library's values."""
    length = 8 + int.from_bytes(whole[:8], "little")
    refused = 0
    for place in range(length):
        content = bytearray(whole)
        content[place] ^= flipped
        expected = read_by_the_library(bytes(content))
        try:
            found = loaded(tmp_path, bytes(content))
        except ValueError:
            refused += 1
        else:
            assert expected is not None
            assert same(found, expected)
    assert refused > length / 2


def write_shards(folder: Path) -> dict[str, str]:
    """Two shards, and the map of their index."""
    save_file({name: TENSORS[name] for name in ("a", "c")}, folder / "one.safetensors")
    save_file({"b": TENSORS["b"]}, folder / "two.safetensors")
    return {"a": "one.safetensors", "c": "one.safetensors", "b": "two.safetensors"}


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_each_tensor_is_taken_from_its_file(tmp_path: Path) -> None:
    weight_map = write_shards(tmp_path)
    write_index(tmp_path, weight_map)
    found = stored_tensors(tmp_path)
    assert {name: tensor.file.name for name, tensor in found.items()} == weight_map


def test_shards_of_the_hubs_cache_are_symlinks(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    snapshot = tmp_path / "snapshots" / "main"
    snapshot.mkdir(parents=True)
    write_index(snapshot, write_shards(tmp_path / "blobs"))
    for name in ("one.safetensors", "two.safetensors"):
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert stored_tensors(snapshot).keys() == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": "one.safetensors"}, r"one\.safetensors lacks b, against model\.safetensors\.index"),
        ({"a": "two.safetensors"}, r"two\.safetensors lacks a, against model\.safetensors\.index"),
        ({"d": "two.safetensors"}, r"two\.safetensors lacks d, against model\.safetensors\.index"),
        ({"b": 3}, r"lacks 'weight_map', the name of a file for each tensor"),
        ({"b": ["two.safetensors"]}, r"lacks 'weight_map', the name of a file for each tensor"),
        ({"b": "../two.safetensors"}, r"'\.\./two\.safetensors' is named by a file of .*inside it"),
        ({"b": "/tmp/two.safetensors"}, r"'/tmp/two\.safetensors' is named by a file of"),
        ({"b": "sub/two.safetensors"}, r"'sub/two\.safetensors' is named by a file of"),
        ({"b": ""}, r"'' is named by a file of"),
    ],
)
def test_an_index_that_the_files_do_not_follow(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    weight_map = write_shards(folder)
    save_file({"b": TENSORS["b"]}, tmp_path / "two.safetensors")
    (folder / "sub").symlink_to(tmp_path)
    write_index(folder, weight_map | change)
    with pytest.raises(ValueError, match=message):
        stored_tensors(folder)


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    write_index(tmp_path, write_shards(tmp_path))
    save_file({"a": TENSORS["a"], "b": TENSORS["b"]}, tmp_path / "two.safetensors")
    with pytest.raises(ValueError, match=r"two\.safetensors also has a, against model\.safetenso"):
        stored_tensors(tmp_path)


def test_a_complete_file_next_to_an_index(tmp_path: Path) -> None:
    write_index(tmp_path, write_shards(tmp_path))
    save_file(TENSORS, tmp_path / WEIGHTS)
    with pytest.raises(ValueError, match=rf"has {WEIGHTS}, which {INDEX} does not name; allowed"):
        stored_tensors(tmp_path)


def test_a_name_that_an_index_has_twice(tmp_path: Path) -> None:
    write_shards(tmp_path)
    text = '{"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}}'
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(ValueError, match=r"index\.json is no JSON: 'a' stands there twice"):
        stored_tensors(tmp_path)


def test_endlessly_nested_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": ' + "[" * 200_000)
    with pytest.raises(ValueError, match=r"config\.json is no JSON: "):
        read_object(tmp_path / "config.json")


def test_a_complete_file_equals_the_saved_one(whole: bytes, tmp_path: Path) -> None:
    assert same(loaded(tmp_path, whole), TENSORS)
    assert same(load_file(tmp_path / WEIGHTS), TENSORS)


def test_a_file_that_ends_while_it_is_read_is_named(whole: bytes, tmp_path: Path) -> None:
    (tmp_path / WEIGHTS).write_bytes(whole)
    found = stored_tensors(tmp_path)
    last = max(found.values(), key=lambda each: each.offset)
    (tmp_path / WEIGHTS).write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=rf"{WEIGHTS} ends before all of {last.name}"):
        values(last)
