"""The peak is measured on all threads at once, and the result names the kernel."""

import shutil
import threading
from functools import partial

import pytest

from experiments.bench import peak
from experiments.bench.peak import find_compiler, measure_bandwidth, measure_peak, seconds_at_once


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler here")
@pytest.mark.parametrize("numbers", ["int8", "bfloat16"])
@pytest.mark.parametrize(("threads", "cores"), [(1, "1 thread"), (2, "2 threads")])
def test_the_kernel(numbers, threads, cores):
    found = measure_peak(numbers, threads, seconds=0.02)
    assert found is not None and found.ops_per_second > 0
    assert found.how.startswith(f"C on {cores}: ")


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler here")
def test_amx_tiles_that_the_system_forbids_are_not_used(monkeypatch):
    class Refused:
        def __init__(self, kernel):
            self._kernel = kernel

        def __getattr__(self, name):
            return (lambda: 0) if name == "ready" else getattr(self._kernel, name)

    load = peak.ctypes.CDLL
    kernels = []

    def first_refused(path):
        kernels.append(path)
        return Refused(load(path)) if len(kernels) == 1 else load(path)

    monkeypatch.setattr(peak.ctypes, "CDLL", first_refused)
    found = measure_peak("int8", 1, seconds=0.02)
    assert found is not None and "AMX" not in found.how and len(kernels) == 2


def test_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler() is None
    assert measure_peak("int8", 2, seconds=0.01) is None


@pytest.mark.skipif(shutil.which("false") is None, reason="no program that always fails here")
def test_with_a_compiler_that_fails(monkeypatch):
    monkeypatch.setattr(peak, "find_compiler", lambda: shutil.which("false"))
    assert measure_peak("bfloat16", 1, seconds=0.01) is None


def test_all_threads_read_their_part():
    assert measure_bandwidth(2, size=1 << 16) > 0


def test_all_threads_work_at_once():
    meeting = threading.Barrier(3)
    assert seconds_at_once(partial(meeting.wait, timeout=30), threads=3) >= 0
