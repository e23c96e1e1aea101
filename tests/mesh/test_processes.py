"""Two processes share a mesh, with collectives over the loopback; they always end."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llada_jax as lj
from tests.mesh.models import CASE, ROOT, environment, process, traces, written

pytestmark = pytest.mark.slow
LIMIT = 300
"""Seconds; the processes' own limits are shorter."""
MESHES = [{"model": 4}, {"data": 2, "model": 2}]


def joined(folder: Path, case: dict[str, Any], count: int = 2) -> list[tuple[int, str]]:
    """Returns each process's exit code and output."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "tests/mesh/joined.py", str(port), "2"]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(folder)], cwd=ROOT, env=environment(2), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in range(count)
    ]  # fmt: skip
    for each in started:
        assert each.stdin is not None
        each.stdin.write(json.dumps(case))
        each.stdin.close()
        each.stdin = None
    try:
        said = [each.communicate(timeout=LIMIT)[0] for each in started]
    finally:
        for each in started:
            each.kill()
    return [(each.returncode, text) for each, text in zip(started, said, strict=True)]


@pytest.mark.parametrize("loop", ["compiled", "host"])
@pytest.mark.parametrize("family", ["llada", "llada_moe"])
def test_two_processes_decode_the_same_as_one(tmp_path: Path, family: str, loop: str) -> None:
    case = {"model": str(written(tmp_path / "model", family)), "meshes": MESHES, "loop": loop}
    (alone,) = traces(tmp_path / "alone", [case])
    ended = joined(tmp_path / "joined", {**CASE, **case})
    assert [code for code, _ in ended] == [0, 0], ended
    for rank in range(2):
        for place, expected in enumerate(alone):
            found = lj.Trace.load(tmp_path / "joined" / f"{rank}-{place}.npz")
            assert found.divergence(expected) is None
            np.testing.assert_array_equal(found.tokens, expected.tokens)


def test_unequal_processes_are_refused(tmp_path: Path) -> None:
    case = {**CASE, "model": "tiny", "meshes": MESHES}
    ended = joined(tmp_path / "joined", {"0": case, "1": {**case, "dtype": "float32"}})
    for code, said in ended:
        assert code == 1
        assert "load something else than process 0; allowed: the same in all" in said


def test_a_mesh_that_leaves_a_process_out_is_refused(tmp_path: Path) -> None:
    ended = joined(tmp_path / "joined", {**CASE, "model": "tiny", "meshes": [{"model": 2}]})
    for code, said in ended:
        assert code == 1
        assert "a mesh of 2 devices is on 1 of 2 processes; allowed: one on all" in said


def test_a_process_whose_partner_never_comes_ends(tmp_path: Path) -> None:
    ((code, said),) = joined(tmp_path / "joined", {**CASE, "model": "tiny", "meshes": MESHES}, 1)
    assert code != 0
    assert "DEADLINE_EXCEEDED" in said


def test_the_command_decodes_on_a_mesh(tmp_path: Path) -> None:
    settings = ["dtype=int8", "loop=compiled", "phones=[]", "plain_sampler=false"]
    answers = []
    for name, mesh in (("one", []), ("eight", ["mesh.data=2", "mesh.model=4"])):
        folder = f"hydra.run.dir={tmp_path / name}"
        process(["-m", "experiments.generate", *settings, *mesh, folder], 8)
        answers.append((tmp_path / name / "answer.txt").read_text())
    assert answers[0] == answers[1]
