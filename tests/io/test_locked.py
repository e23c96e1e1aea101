"""Only one process writes to a folder at a time; the error of another process names it."""

import errno
import fcntl
import os
import re
import subprocess
import sys

import pytest

from llada_jax.io.locked import LOCK_FILE, locked


def test_the_error_names_the_holder_of_the_lock(tmp_path):
    with locked(tmp_path / "run"):
        me = (
            rf"run is in use by process {os.getpid()} on \S+, since \d{{4}}-\d\d-\d\d \d\d:.*; allo"
        )
        with pytest.raises(ValueError, match=me), locked(tmp_path / "run"):
            raise AssertionError("two hold the lock")
    assert not list((tmp_path / "run").iterdir())
    with locked(tmp_path / "run"):
        pass


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path):
    code = f"""
import os, pathlib
from llada_jax.io.locked import locked
with locked(pathlib.Path({str(tmp_path)!r})):
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    left = (tmp_path / LOCK_FILE).read_text()
    assert re.match(r"process \d+ on", left) and str(os.getpid()) not in left
    with locked(tmp_path):
        assert (tmp_path / LOCK_FILE).read_text().startswith(f"process {os.getpid()} on ")


def test_locking_retries_if_the_file_was_removed(tmp_path, monkeypatch):
    flock, path = fcntl.flock, tmp_path / LOCK_FILE

    def removed_by_its_owner(file, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", removed_by_its_owner)
    with locked(tmp_path), pytest.raises(ValueError, match="is in use by"), locked(tmp_path):
        pass


def test_a_file_system_without_locks_gives_a_warning(tmp_path, monkeypatch):
    def unknown(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    with pytest.warns(UserWarning, match="has no locks"), locked(tmp_path):
        pass


def test_a_shared_lock_excludes_exclusive_ones(tmp_path):
    with locked(tmp_path, shared=True), locked(tmp_path, shared=True):
        with pytest.raises(ValueError, match="is in use by another process"), locked(tmp_path):
            raise AssertionError("it is shared")
    with locked(tmp_path):
        with pytest.raises(ValueError, match=rf"is in use by process {os.getpid()}"):
            with locked(tmp_path, shared=True):
                raise AssertionError("it is not shared")
    assert not list(tmp_path.iterdir())
