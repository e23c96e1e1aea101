"""Work in a process of its own."""

import os

import pytest

from experiments.harness.own_process import in_own_process


def test_what_it_gives_and_raises_comes_back(monkeypatch):
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    assert in_own_process(os.getpid) != os.getpid()
    told = in_own_process(
        os.getenv, "MALLOC_MMAP_THRESHOLD_", environment={"MALLOC_MMAP_THRESHOLD_": "65536"}
    )
    assert told == "65536"
    assert "MALLOC_MMAP_THRESHOLD_" not in os.environ
    with pytest.raises(ValueError, match="invalid literal"):
        in_own_process(int, "x")
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "7")
    assert in_own_process(abs, -3) == 3
    assert os.environ["MALLOC_MMAP_THRESHOLD_"] == "7"
