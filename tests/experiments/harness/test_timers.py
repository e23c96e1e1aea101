"""Timing in turns, work in a separate process, and the spread of repeated times."""

import os

import jax.numpy as jnp
import pytest

from experiments.harness.timers import in_new_process, in_turns, spread, times_in_turns


def test_a_forward_with_nan_is_not_timed():
    with pytest.raises(FloatingPointError, match="wide: NaN or infinite"):
        times_in_turns({"wide": lambda: jnp.full(2, jnp.inf)}, repeats=1)


def test_candidates_take_turns():
    calls = []
    first, times = in_turns(
        {name: lambda name=name: calls.append(name) or name for name in "ab"}, repeats=2
    )
    assert calls == ["a", "b", "a", "b", "b", "a"]
    assert first == {"a": "a", "b": "b"} and all(len(each) == 2 for each in times.values())


def test_spread():
    low, median, high = sorted(row.value for row in spread("x", [1, 2, 3, 4, 9], "s"))
    assert (low, median, high) == (2, 3, 4)


def test_results_and_exceptions_of_a_new_process_are_passed_on(monkeypatch):
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    assert in_new_process(os.getpid) != os.getpid()
    told = in_new_process(
        os.getenv, "MALLOC_MMAP_THRESHOLD_", environment={"MALLOC_MMAP_THRESHOLD_": "65536"}
    )
    assert told == "65536"
    assert "MALLOC_MMAP_THRESHOLD_" not in os.environ
    with pytest.raises(ValueError, match="invalid literal"):
        in_new_process(int, "x")
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "7")
    assert in_new_process(abs, -3) == 3
    assert os.environ["MALLOC_MMAP_THRESHOLD_"] == "7"
