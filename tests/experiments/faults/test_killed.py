"""Commands killed at random moments (SIGKILL) resume and reach the result of an undisturbed one."""

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.harness.run import REPOSITORY
from tests.experiments.faults.replay import arguments, require_whole, snapshot

MOMENTS = int(os.environ.get("MOMENTS", "50"))


def started(verb: str, model: Path, folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", f"experiments.{verb}", *arguments(verb, str(model), folder)]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=quiet, stderr=quiet)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["train", "evaluate", "export"])
def test_a_command_that_is_killed(verb, random_model, tmp_path):
    if verb == "export":
        pytest.importorskip("litert_converter")
    folder, moments, outcomes = tmp_path / "runs", random.Random(f"kill {verb}"), []
    assert started(verb, random_model, folder).wait() == 0  # which compiles
    shutil.rmtree(folder)
    began = time.monotonic()
    assert started(verb, random_model, folder).wait() == 0
    longest = time.monotonic() - began
    reference = snapshot(verb, folder)
    shutil.rmtree(folder)
    for _ in range(MOMENTS):
        running = started(verb, random_model, folder)
        try:
            code = running.wait(moments.uniform(0.3, 1) * longest)
        except subprocess.TimeoutExpired:
            running.kill()
            code = running.wait()
        outcomes.append(code)
        require_whole(verb, folder, reference)
        if code == 0 or (verb == "export" and (folder / "out").exists()):
            assert {**snapshot(verb, folder), "left": []} == {**reference, "left": []}
            shutil.rmtree(folder)
    assert started(verb, random_model, folder).wait() == 0
    assert snapshot(verb, folder) == reference
    assert set(outcomes) <= {0, -9} and -9 in outcomes
    print(f"{verb}: killed {outcomes.count(-9)} times of {len(outcomes)}")
