"""Records of arrays: damaged or malicious files are refused, wherever the damage is."""

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llada_jax.io import archive
from llada_jax.io.archive import load_archive, save_archive

ARRAYS = {
    "counts": np.arange(20),
    "by_column": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "none": np.zeros((0, 4), np.int32),
    "truths": np.array([True, False]),
}
SETTINGS = {"seed": 3, "name": "ü", "nan": float("inf")}


def loaded(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    return load_archive(path, ARRAYS, 2, kind="record", short="record")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.npz"
    save_archive(path, ARRAYS, SETTINGS, version=2)
    return path


def require_whole(found: tuple[dict[str, np.ndarray], dict[str, Any]]) -> None:
    arrays, settings = found
    assert settings == SETTINGS
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array, strict=True)


def test_loading_inverts_saving(path: Path) -> None:
    found = loaded(path)
    require_whole(found)
    found[0]["counts"][0] = 3  # the caller's copy
    with np.load(path) as file:
        np.testing.assert_array_equal(file["counts"], ARRAYS["counts"])


def test_a_picture_is_not_accepted_as_a_record(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    with pytest.raises(ValueError, match=r"a\.png is no record of llada_jax; allowed: .*\.npz"):
        load_archive(path, ARRAYS, 2, kind="record", short="record")


@pytest.mark.parametrize("flipped", [0x01, pytest.param(0x80, marks=pytest.mark.slow)])
def test_a_damaged_byte_is_refused_or_changes_nothing(flipped: int, path: Path) -> None:
    whole, refused = path.read_bytes(), 0
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= flipped
        path.write_bytes(damaged)
        try:
            found = loaded(path)
        except ValueError as error:
            assert "a.npz is no record of llada_jax" in str(error)
            refused += 1
        else:
            require_whole(found)
    assert refused > len(whole) / 3


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npy_header(shape: str, dtype: str = "'<i8'") -> bytes:
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def rewritten(path: Path, method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> None:
    """The same members except these; the checksum of the original arrays is kept."""
    with zipfile.ZipFile(path) as file:
        kept = {info.filename: file.read(info) for info in file.infolist()}
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in (kept | {f"{name}.npy": raw for name, raw in members.items()}).items():
            file.writestr(name, content)


def zeros_announced_as(path: Path, n_zeros: int, announced: int) -> None:
    """A member of zeros, with another size in the directory."""
    rewritten(path, counts=bytes(n_zeros))
    raw = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = -1
        while (at := raw.find(mark, at + 1)) >= 0:
            if raw[at + place : at + place + 4] == struct.pack("<I", n_zeros):
                raw[at + place : at + place + 4] = struct.pack("<I", announced)
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"counts": npy(np.arange(20) + 1)}, "its SHA-256 is another"),
        ({"counts": npy(np.arange(20).reshape(4, 5))}, "its SHA-256 is another"),
        ({"counts": npy(np.arange(20).astype(np.float64))}, "its SHA-256 is another"),
        ({"counts": npy(np.arange(20))[:-8]}, "expected 160 bytes got 152"),
        ({"counts": npy_header("(10**4000,)")}, ""),
        ({"counts": npy_header("(1000000000000000000000,)")}, ""),
        ({"counts": npy_header("(-1, -20)") + bytes(160)}, ""),
        ({"counts": npy_header("(4,\0)") + bytes(32)}, "null bytes"),
        ({"counts": npy_header("(4,)", "'|O'") + bytes(32)}, ""),
        ({"counts": npy_header("(2,)", "'|V0'")}, ""),
        ({"counts": npy_header("(1000000000000,)") + bytes(160)}, ""),
        ({"counts": npy(np.arange(20)) + b"0"}, "counts has more bytes than its array"),
        ({"counts": b"\x93NUMPY\x02\x00" + bytes(8)}, ""),
        ({"counts": b""}, ""),
        ({"counts": b"no array"}, ""),
        ({"settings": npy(np.array("[]"))}, "its settings are no object"),
        ({"settings": npy(np.array("[" * 100_000))}, ""),
        ({"settings": npy(np.array("{"))}, ""),
        ({"settings": npy(np.array('{"format": 2, "seed": 4}'))}, "its SHA-256 is another"),
        ({"sha256": npy(np.array("00"))}, "its SHA-256 is another"),
    ],
)
def test_invalid_members_are_refused(members: dict[str, bytes], message: str, path: Path) -> None:
    rewritten(path, **members)
    with pytest.raises(ValueError, match=rf"a\.npz is no record of llada_jax: .*{message}"):
        loaded(path)


def test_a_record_without_an_array_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.npz is no record of llada_jax: .*absent\.npy"):
        load_archive(path, ["absent"], 2, kind="record", short="record")


def test_a_zip_bomb_is_not_decompressed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_LARGEST", 1 << 20)
    rewritten(path, counts=bytes(1 << 20))
    monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda *_: pytest.fail("it was inflated"))
    with pytest.raises(ValueError, match=r"it would inflate to \d+ bytes; allowed: up to 1048576"):
        loaded(path)


def test_a_zip_bomb_in_an_unused_member_is_refused(path: Path) -> None:
    rewritten(path, other=bytes(1 << 24))
    require_whole(loaded(path))


@pytest.mark.parametrize("announced", [0, 100, 1 << 10])
def test_a_zip_bomb_with_a_false_size_is_refused(
    announced: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros_announced_as(path, 1 << 24, announced)
    read, sizes = zipfile.ZipExtFile.read, []

    def measured(self: zipfile.ZipExtFile, n: int = -1) -> bytes:
        sizes.append(n)
        return read(self, n)

    monkeypatch.setattr(zipfile.ZipExtFile, "read", measured)
    with pytest.raises(ValueError, match=r"a\.npz is no record"):
        loaded(path)
    assert all(0 <= n <= 1 << 18 for n in sizes)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression_methods_are_refused(method: int, path: Path) -> None:
    rewritten(path, method)
    with pytest.raises(ValueError, match=rf"settings is packed by method {method}"):
        loaded(path)


def test_records_too_large_to_load_are_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_LARGEST", 100)
    with pytest.raises(ValueError, match=r"b\.npz would hold 186 bytes; allowed: up to 100"):
        save_archive(tmp_path / "b.npz", ARRAYS, {}, version=2)
    assert not any(tmp_path.iterdir())


def test_the_error_for_an_older_record_names_its_version(path: Path) -> None:
    """Records before format 3 of the traces had no checksum."""
    np.savez(path, settings=np.array(json.dumps({"format": 1})), counts=np.arange(20))
    with pytest.raises(ValueError, match=r"a\.npz has record format 1; allowed: 2"):
        loaded(path)
