"""The script that checks and times a GPU fails if its tests or its timings do."""

import os
import subprocess

import pytest

from experiments.harness.run import REPOSITORY

PYTHON = """#!/bin/sh
case "$*" in
  *"-m pytest"*) echo tested; exit {tests} ;;
  *) touch "$RAN"; exit {bench} ;;
esac
"""


@pytest.mark.parametrize(("tests", "bench", "code"), [(0, 0, 0), (1, 0, 1), (0, 3, 3)])
def test_the_script_ends_with_the_status_of_what_failed(tmp_path, tests, bench, code):
    python, ran = tmp_path / "python", tmp_path / "ran"
    python.write_text(PYTHON.format(tests=tests, bench=bench))
    python.chmod(0o755)
    script = REPOSITORY / "experiments/bench/gpu.sh"
    command = ["sh", str(script), str(tmp_path / "results")]
    environment = {**os.environ, "PYTHON": str(python), "RAN": str(ran)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert ran.exists()
    assert (tmp_path / "results/tests.txt").read_text() == done.stdout == "tested\n"
