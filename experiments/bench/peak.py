"""Measures the peak operations per second of this machine's cores, and their read bandwidth.

>>> measure_peak("int8", threads=2)
Peak(ops_per_second=1.2e13, how='C on 2 threads: AMX, ...; best of 100')
"""

import ctypes
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import numpy as np

Numbers = Literal["int8", "bfloat16"]

KERNEL = Path(__file__).with_suffix(".c")
FLAGS = ["-O3", "-march=native", "-shared", "-fPIC"]
FLAGS += ["-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math"]  # sums as vectors
REPEATS = 100
"""Other programs interrupt a long measurement; the best of many short ones is undisturbed."""


class Peak(NamedTuple):
    ops_per_second: float
    """Two operations for each multiply-add."""
    how: str
    """The kernel that ran, and whether the true peak may be higher."""


def measure_peak(numbers: Numbers, threads: int, seconds: float = 1.0) -> Peak | None:
    """Measures the peak of `threads` concurrent threads for at least `seconds`. Returns None if no
    C compiler builds the kernel."""
    compiler = find_compiler()
    kinds = ["-DBFLOAT16"] if numbers == "bfloat16" else []
    with TemporaryDirectory() as folder:
        for tiles in ([], ["-DNO_TILES"]):  # the system may forbid AMX tiles
            library = Path(folder) / f"peak{len(tiles)}.so"
            flags = [*FLAGS, *kinds, *tiles]
            command = [compiler or "false", *flags, KERNEL, "-o", library]
            if compiler and subprocess.run(command, capture_output=True).returncode == 0:
                kernel = ctypes.CDLL(str(library))
                if kernel.ready():
                    return _peak_of_kernel(kernel, threads, seconds)
    return None


def measure_bandwidth(threads: int, size: int = 1 << 30) -> float:
    """Returns the bytes per second that `threads` threads read from `size` bytes of memory."""
    numbers = np.ones((threads, size // 8 // threads), np.int64)

    def seconds() -> float:
        parts = iter(numbers)
        return seconds_at_once(lambda: next(parts).max(), threads)

    return numbers.nbytes / min(seconds() for _ in range(5))


def instruction_sets() -> str:
    """Returns Linux's names of the CPU's instruction sets for narrow products."""
    known = ("avx2", "vnni", "bf16", "amx", "i8mm", "asimddp")
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    lines = [line for line in text.splitlines() if line.startswith(("flags", "Features"))]
    words = sorted(set(lines[0].split())) if lines else []
    return " ".join(word for word in words if any(part in word for part in known)) or "unknown"


def find_compiler() -> str | None:
    """Returns the path of a C compiler, or None."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def _peak_of_kernel(kernel: ctypes.CDLL, threads: int, seconds: float) -> Peak:
    kernel.run.argtypes, kernel.run.restype = [ctypes.c_int64], None
    kernel.multiply_adds_per_round.restype = ctypes.c_int64
    kernel.name.restype = ctypes.c_char_p

    def best_of(repeats: int, rounds: int) -> float:
        work = partial(kernel.run, rounds)
        return min(seconds_at_once(work, threads) for _ in range(repeats))

    rounds = 1024
    while best_of(5, rounds) < seconds / REPEATS:  # the best of 5, as one run may be interrupted
        rounds *= 2
    best = best_of(REPEATS, rounds)
    operations = 2 * kernel.multiply_adds_per_round() * rounds * threads
    cores = "1 thread" if threads == 1 else f"{threads} threads"
    return Peak(operations / best, f"C on {cores}: {kernel.name().decode()}; best of {REPEATS}")


def seconds_at_once(work: Callable[[], object], threads: int) -> float:
    """Returns the seconds from the moment when all threads are ready until the last has finished
    `work`, which runs in parallel if it releases Python's lock, as foreign functions do."""
    began = []
    ready = threading.Barrier(threads, action=lambda: began.append(time.perf_counter()))

    def end_of_work(_: int) -> float:
        ready.wait()
        work()
        return time.perf_counter()

    with ThreadPoolExecutor(threads) as pool:
        return max(pool.map(end_of_work, range(threads))) - began[0]
