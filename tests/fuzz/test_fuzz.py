"""A quick run in a separate process, and a check that the fuzzer finds planted defects."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import planted
from tests.fuzz.judge import Watch
from tests.fuzz.kinds import KINDS

ROOT = Path(__file__).parents[2]
CASES = 30


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def done() -> subprocess.CompletedProcess[str]:
    """Planted defects and damaged files in one process, since its imports take seconds."""
    return run("tests.fuzz.planted", "--cases", str(CASES))


def test_no_damaged_file_is_accepted_or_breaks_anything(done):
    assert done.returncode == 0, done.stdout + done.stderr
    cases = sum(max(1, CASES * share // 200) for _, share in KINDS.values())
    assert f"| all | {cases} |" in done.stdout


@pytest.mark.slow
def test_none_of_two_thousand_damaged_files_breaks_anything():
    done = run("tests.fuzz", "--cases", "2000", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_planted_defect_is_found(done):
    expected = [f"{outcome} -> {outcome}" for outcome in planted.KINDS for _ in range(2)]
    assert done.stdout.splitlines()[: len(expected)] == expected, done.stderr


def test_sources_that_a_traceback_looks_for_do_not_count_as_touched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    watch = Watch(tmp_path, folder=tmp_path / "case")
    watch._touched("numpy/random/mtrand.pyx", False)  # its path when it was compiled
    assert not watch.outside
    others = ["numpy/x.txt", "no_package/loop.pyx", "numpy/../../outside/x.pyx", "loop.pyx"]
    for path in others:
        watch._touched(path, False)
    watch._touched("numpy/random/mtrand.pyx", True)
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "there.pyx").touch()
    watch._touched("numpy/there.pyx", False)
    assert len(watch.outside) == len(others) + 1
