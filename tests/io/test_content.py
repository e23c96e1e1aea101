"""A file's hash: a large file is read once, and again after it was written."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from llada_jax.io import content


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read to the end; files of 100 bytes count as large."""
    names: list[str] = []
    real = content._sha256
    monkeypatch.setattr(content, "_sha256", lambda path: (names.append(path.name), real(path))[1])
    monkeypatch.setattr(content, "REMEMBERED_BYTES", 100)
    monkeypatch.setattr(content, "_read_here", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return names


def large(folder: Path, byte: bytes = b"x", name: str = "weights") -> Path:
    (folder / name).write_bytes(byte * 1000)
    return folder / name


def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_read_here", {})


def test_a_hash_is_sha256_and_is_remembered(tmp_path, read, monkeypatch):
    path = large(tmp_path)
    expected = hashlib.sha256(b"x" * 1000).hexdigest()
    assert content.file_hash(path) == content.file_hash(path) == expected
    another_process(monkeypatch)
    (tmp_path / "link").symlink_to(path)
    assert content.file_hash(tmp_path / "link") == expected
    assert read == ["weights"]
    assert [file.name for file in (tmp_path / "cache" / "llada_jax").iterdir()] == ["hashes.json"]


def test_long_reads_show_progress(tmp_path, read, monkeypatch, capsys):
    content.file_hash(large(tmp_path))
    assert not capsys.readouterr().err
    monkeypatch.setattr(content, "_SILENT_SECONDS", 0)
    monkeypatch.setattr(content, "_PIECE_BYTES", 300)
    expected = hashlib.sha256(b"y" * 1000).hexdigest()
    assert content.file_hash(large(tmp_path, b"y", "other")) == expected
    assert "reading other: 100%" in capsys.readouterr().err


def test_a_touched_file_is_hashed_again(tmp_path, read):
    path = large(tmp_path)
    first = content.file_hash(path)
    os.utime(path, ns=(0, 0))
    assert content.file_hash(path) == first
    assert read == ["weights"] * 2


def test_changed_content_with_equal_size_and_mtime_is_hashed_again(tmp_path, read):
    path, other = large(tmp_path), large(tmp_path, b"y", "other")
    times = path.stat()
    first = content.file_hash(path)
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(path)
    assert path.stat().st_mtime_ns == times.st_mtime_ns
    assert content.file_hash(path) != first


@pytest.mark.parametrize("stored", ["", "[]", "{}", '{"a": 3}', "{", "\0"])
def test_a_damaged_cache_is_ignored(stored, tmp_path, read):
    path = large(tmp_path)
    first = content.file_hash(path)
    memory = tmp_path / "cache" / "llada_jax" / "hashes.json"
    memory.write_text(stored)
    content._read_here.clear()
    assert content.file_hash(path) == first
    assert read == ["weights"] * 2
    assert list(json.loads(memory.read_text())) == [str(path)]


def test_without_a_cache_folder_hashes_are_kept_in_memory(tmp_path, read, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    path = large(tmp_path)
    assert content.file_hash(path) == content.file_hash(path)
    assert read == ["weights"]


def test_deleted_files_are_forgotten_and_small_files_not_cached(tmp_path, read, monkeypatch):
    content.file_hash(gone := large(tmp_path, name="gone"))
    gone.unlink()
    another_process(monkeypatch)
    content.file_hash(large(tmp_path))
    memory = json.loads((tmp_path / "cache" / "llada_jax" / "hashes.json").read_text())
    assert list(memory) == [str(tmp_path / "weights")]
    (tmp_path / "small").write_bytes(b"x" * 99)
    read.clear()
    assert content.file_hash(tmp_path / "small") == content.file_hash(tmp_path / "small")
    assert read == ["small"] * 2


def test_a_content_hash_depends_on_names_and_content(tmp_path):
    a, b = large(tmp_path, b"a", "a"), large(tmp_path, b"b", "b")
    both = content.content_hash(tmp_path, [a, b])
    assert both == content.content_hash(tmp_path, [b, a]) and len(both) == 32
    assert both != content.content_hash(tmp_path, [a])
    b.rename(tmp_path / "c")
    assert both != content.content_hash(tmp_path, [a, tmp_path / "c"])
