"""The int8 peak is measured at once on all threads, and says what it was measured with."""

import shutil
import threading
from functools import partial

import pytest

from experiments.bench import int8_peak
from experiments.bench.int8_peak import find_compiler, measure_int8_peak, seconds_at_once


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler here")
@pytest.mark.parametrize(("threads", "cores"), [(1, "1 thread"), (2, "2 threads")])
def test_the_kernel(threads, cores):
    peak = measure_int8_peak(threads, seconds=0.02)
    assert peak is not None and peak.ops_per_second > 0
    assert peak.how.startswith(f"C on {cores}: ")


def test_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler() is None
    assert measure_int8_peak(2, seconds=0.01) is None


@pytest.mark.skipif(shutil.which("false") is None, reason="no program that always fails here")
def test_with_a_compiler_that_fails(monkeypatch):
    monkeypatch.setattr(int8_peak, "find_compiler", lambda: shutil.which("false"))
    assert measure_int8_peak(1, seconds=0.01) is None


def test_all_threads_work_at_once():
    meeting = threading.Barrier(3)
    assert seconds_at_once(partial(meeting.wait, timeout=30), threads=3) >= 0
