"""If the n-th write, rename or fsync of a verb fails, or the verb dies there, nothing is lost."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.harness.run import REPOSITORY

QUICK = {"evaluate": 61, "export": 97}
"""Distance between the faults that the quick test tries."""


@pytest.fixture(scope="session")
def layer(tmp_path_factory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("the layer is C, for Linux")
    built = tmp_path_factory.mktemp("layer") / "faults.so"
    source = Path(__file__).parent / "faults.c"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", source, "-o", built, "-ldl"], check=True)
    return built


def replay(layer: Path, verb: str, model: Path, folder: Path, first: int, stride: int) -> None:
    if verb == "export":
        pytest.importorskip("litert_converter")
    program = [sys.executable, "-m", "tests.experiments.faults.replay"]
    result = subprocess.run(
        [*program, verb, model, folder, str(first), str(stride)],
        cwd=REPOSITORY,
        env={**os.environ, "LD_PRELOAD": str(layer)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert f"{verb}: " in result.stdout
    print(result.stdout)


@pytest.mark.parametrize("verb", ["export", pytest.param("evaluate", marks=pytest.mark.slow)])
def test_some_faults_of_every_kind(verb, layer, random_model, tmp_path):
    replay(layer, verb, random_model, tmp_path / "runs", 5, QUICK[verb])


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["train", "evaluate", "export"])
def test_every_fault_of_every_kind(verb, layer, random_model, tmp_path):
    replay(layer, verb, random_model, tmp_path / "runs", 1, 0)
