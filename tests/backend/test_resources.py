"""Free disk space and memory are checked before a job starts."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from llada_jax.backend import resources
from llada_jax.backend.resources import available_memory, peak_memory, require_disk, require_memory


def test_the_disk_of_a_folder_that_does_not_exist_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def usage(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(free=5_000_000_000)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    require_disk(tmp_path / "deep" / "er", 5_000_000_000, "the export")
    assert asked == [tmp_path]
    message = r"the export takes 5\.10GB, but the disk of .*er has 5\.00GB left"
    with pytest.raises(ValueError, match=message):
        require_disk(tmp_path / "deep" / "er", 5_100_000_000, "the export")


def test_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (Path("new") / "folder", Path("")):
        require_disk(folder, 1, "the export")
        with pytest.raises(ValueError, match=r"the export takes 1\.15EB, .* left"):
            require_disk(folder, 1 << 60, "the export")


def test_memory_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "available_memory", lambda: 3_000_000_000)
    require_memory(3_000_000_000, "running it")
    message = r"running it takes 8\.50GB of memory, but 3\.00GB are left"
    with pytest.raises(ValueError, match=message):
        require_memory(8_500_000_000, "running it")


def test_a_system_without_memory_information(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "_MEMINFO", tmp_path / "absent")
    assert available_memory() is None
    require_memory(1 << 60, "running it")


def test_memory_values_are_read_from_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 32 kB\nMemFree:  1 kB\nMemAvailable:   17 kB\n")
    monkeypatch.setattr(resources, "_MEMINFO", meminfo)
    assert available_memory() == 17 * 1024


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs Linux's /proc")
def test_this_machine_has_some_memory() -> None:
    found = available_memory()
    assert found is not None and found > 1 << 20


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_the_peak_of_a_process() -> None:
    """In a separate process, since a large one may already have 256 MB of free heap."""
    lines = (
        "import numpy as np",
        "from llada_jax.backend.resources import peak_memory",
        "before = peak_memory()",
        "np.ones(32_000_000)",
        "print(before, peak_memory())",
    )
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    before, high = map(int, ran.stdout.split())
    assert high > before + 200_000_000


def test_a_system_without_a_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_STATUS", tmp_path / "absent")
    assert peak_memory() is None
