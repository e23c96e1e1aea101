"""Atomic writes are complete or absent, also with several writers."""

import io
import os
import threading
from pathlib import Path

import pytest

from llada_jax.io import atomic


class Interrupted(Exception):
    pass


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_a_text_is_written_unchanged(tmp_path):
    atomic.write_text(tmp_path / "a.txt", "eins\r\nzwei ü\n")
    assert (tmp_path / "a.txt").read_bytes() == "eins\r\nzwei ü\n".encode()


def test_bytes_replace_an_earlier_file(tmp_path):
    for content in (b"a longer one", b"new"):
        atomic.write_bytes(tmp_path / "a.bin", content)
    assert contents(tmp_path) == {"a.bin": "new"}


def test_files_have_the_usual_permissions(tmp_path):
    atomic.write_text(tmp_path / "ours", "")
    (tmp_path / "usual").write_text("")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_failure_leaves_the_old_file_and_no_temporary(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(Interrupted), atomic.new_file(path) as part:
        part.write_text("half of the n")
        raise Interrupted
    assert contents(tmp_path) == {"a.txt": "old"}


def test_a_failed_append_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    atomic.append_text(path, "one ü\n")
    atomic.append_text(path, "two\n")

    def half_of(content: bytes, file) -> int:
        return os.write(file.fileno(), content[: len(content) // 2])

    class Full(io.FileIO):
        def write(self, content):
            return half_of(content, self)

    monkeypatch.setattr(
        atomic, "open", lambda path, mode, buffering: Full(path, "a"), raising=False
    )
    with pytest.raises(OSError, match="No space left on device"):
        atomic.append_text(path, "three\n")
    assert contents(tmp_path) == {"rows.jsonl": "one ü\ntwo\n"}


def test_two_writers_of_a_file_do_not_clash(tmp_path):
    path = tmp_path / "a.txt"
    with atomic.new_file(path) as first, atomic.new_file(path) as second:
        assert first.parent == second.parent == tmp_path
        first.write_text("first")
        second.write_text("second")
    assert contents(tmp_path) == {"a.txt": "first"}  # it was finished last


def test_a_new_folder_gets_its_name_when_complete(tmp_path):
    with atomic.new_folder(tmp_path / "deep" / "a") as part:
        (part / "file").write_text("new")
        assert not (tmp_path / "deep" / "a").exists()
    assert contents(tmp_path / "deep" / "a") == {"file": "new"}


def test_a_folder_s_files_replace_the_files_of_another_one(tmp_path):
    target = tmp_path / "a"
    target.mkdir()
    for name in ("file", "other"):
        (target / name).write_text("old")
    with atomic.new_folder(target) as part:
        (part / "file").write_text("new")
    assert contents(target) == {"file": "new", "other": "old"}
    assert list(tmp_path.iterdir()) == [target]


def test_a_failure_leaves_the_old_folder_and_no_temporary(tmp_path):
    target = tmp_path / "a"
    target.mkdir()
    (target / "file").write_text("old")
    with pytest.raises(Interrupted), atomic.new_folder(target) as part:
        (part / "file").write_text("half of the n")
        raise Interrupted
    assert contents(target) == {"file": "old"}
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_does_not_replace_a_file(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(NotADirectoryError), atomic.new_folder(tmp_path / "a") as part:
        (part / "file").write_text("new")
    assert contents(tmp_path) == {"a": "old"}


def test_many_writers_of_a_folder_do_not_clash(tmp_path):
    target, failures = tmp_path / "a", []

    def write(name: str) -> None:
        try:
            for _ in range(30):
                with atomic.new_folder(target) as part:
                    (part / "first").write_text(name)
                    (part / "second").write_text(name)
        except OSError as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not failures
    assert contents(target).keys() == {"first", "second"}
    assert list(tmp_path.iterdir()) == [target]


def test_temporaries_of_killed_writers_are_removed(tmp_path):
    writer = atomic.new_file(tmp_path / "a.txt")
    writer.__enter__().write_text("half of the n")  # and it is never left
    folder = atomic.new_folder(tmp_path / "deep" / "b")
    (folder.__enter__() / "file").write_text("half of it")
    kept = [tmp_path / "a.txt", tmp_path / ".model.partial"]
    for path in kept:
        path.write_text("")
    assert len(list(tmp_path.rglob("*"))) == 6
    atomic.remove_temporaries(tmp_path)
    assert sorted(tmp_path.rglob("*")) == sorted([*kept, tmp_path / "deep"])


@pytest.fixture
def steps(monkeypatch):
    """The writers' system calls, in order."""
    asked, fsync, rename = [], os.fsync, os.rename

    def synced(descriptor):
        asked.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name[:7]))
        fsync(descriptor)

    def renamed(old, new, **options):
        asked.append(("rename", Path(new).name))
        rename(old, new, **options)

    monkeypatch.setattr(os, "fsync", synced)
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, renamed)
    return asked


def test_a_file_is_synced_before_its_rename_and_the_folder_after_it(steps, tmp_path):
    atomic.write_text(tmp_path / "a.txt", "new")
    assert steps == [("sync", ".a.txt."), ("rename", "a.txt"), ("sync", tmp_path.name[:7])]


def test_a_folder_is_synced_before_its_rename(steps, tmp_path):
    with atomic.new_folder(tmp_path / "a") as part:
        (part / "deep").mkdir()
        (part / "deep" / "file").write_text("new")
    assert [what for what, _ in steps] == ["sync"] * 3 + ["rename", "sync"]
    assert sorted(name for _, name in steps[:2]) == ["deep", "file"]
    assert steps[3:] == [("rename", "a"), ("sync", tmp_path.name[:7])]


def test_files_added_to_a_folder_are_synced(steps, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "other").touch()
    with atomic.new_folder(tmp_path / "a") as part:
        (part / "file").write_text("new")
    assert steps[-3:] == [("rename", "file"), ("sync", "a"), ("sync", tmp_path.name[:7])]
    assert ("sync", "file") in steps[:2]


def test_only_first_lets_one_of_several_writers_write(tmp_path):
    for text in ("one", "two"):
        atomic.write_text(tmp_path / "settings", text, only_first=True)
    assert (tmp_path / "settings").read_text() == "one"
    assert [each.name for each in tmp_path.iterdir()] == ["settings"]
