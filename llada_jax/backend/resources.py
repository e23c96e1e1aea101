"""Queries this machine's CPU, memory and disk, and checks that a job fits."""

import os
import platform
import shutil
import zlib
from pathlib import Path

from tqdm import tqdm

from llada_jax.config import require

_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_STATUS = Path("/proc/self/status")


def require_disk(folder: Path, size: int, what: str) -> None:
    """Raises ValueError unless the disk of `folder` has `size` bytes left."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    require(
        size <= free,
        f"{what} takes {_readable(size)}, but the disk of {folder} has {_readable(free)} left",
    )


def require_memory(size: int, what: str) -> None:
    """Raises ValueError if the system reports that fewer than `size` bytes are available."""
    available = available_memory()
    require(
        available is None or size <= available,
        f"{what} takes {_readable(size)} of memory, but {_readable(available or 0)} are left",
    )


def _readable(size: int) -> str:
    return tqdm.format_sizeof(size, "B")


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def this_cpu() -> str:
    """Returns a hash of the CPU's instruction set: code compiled for another one may crash."""
    lines = _CPUINFO.read_text().splitlines() if _CPUINFO.exists() else []
    features = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    description = platform.system(), platform.machine(), sorted(features)
    return f"{zlib.crc32(repr(description).encode()):08x}"


def available_memory() -> int | None:
    """Returns the bytes that can be used without swapping, or None if the system does not report
    it."""
    return _bytes(_MEMINFO, "MemAvailable")


def peak_memory() -> int | None:
    """Returns this process's peak memory in bytes, or None if the system does not report it."""
    return _bytes(_STATUS, "VmHWM")


def _bytes(file: Path, name: str) -> int | None:
    if not file.exists():
        return None
    fields = dict(line.split(":", 1) for line in file.read_text().splitlines())
    return 1024 * int(fields[name].split()[0])
