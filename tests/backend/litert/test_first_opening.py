"""A child process opens a file first: damage ends the child and is one clear error here."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from llada_jax.backend.protocol import Step

pytest.importorskip("ai_edge_litert", reason="needs the extra npu")
pytest.importorskip("litert_converter", reason="needs the extra npu")

from llada_jax.backend.litert import first_opening, tflite
from llada_jax.backend.litert.first_opening import pack_in_child
from llada_jax.backend.litert.runtime import LiteRT
from llada_jax.backend.lower import lower


class Rows:
    def rows(self, name, start=0, stop=None):
        yield np.ones((64, 64), np.float32)[start:stop]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    step = Step("step", lambda w, x: {"y": x["x"] @ w["w"].T}, {"w": (64, 64)}, {"x": (2, 64)})
    path = tmp_path_factory.mktemp("whole") / "whole.tflite"
    tflite.write(path, [lower(step)], Rows())
    return path.read_bytes()


def crashing(whole: bytes) -> bytes:
    """Flips one bit of the root table, which ends a process that opens the file."""
    return whole[:33] + bytes([whole[33] ^ 0x40]) + whole[34:]


def test_a_whole_file_is_packed_and_runs(whole: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.tflite").write_bytes(whole)
    pack_in_child({tmp_path / "a.tflite": tmp_path / "a.xnnpack"})
    packed = (tmp_path / "a.xnnpack").stat()
    assert packed.st_size >= 64 * 64 * 4
    (step,) = LiteRT().open(tmp_path / "a.tflite", tmp_path / "a.xnnpack").values()
    assert (step.run({"x": np.ones((2, 64), np.float32)})["y"] == 64).all()
    assert (tmp_path / "a.xnnpack").stat().st_mtime_ns == packed.st_mtime_ns, "it was packed again"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (crashing, "its process ended with status -"),
        (lambda whole: whole[:40], r"\(LiteRT, opening"),
    ],
)
def test_a_damaged_file_does_not_end_this_process(
    damage: Callable[[bytes], bytes], message: str, whole: bytes, tmp_path: Path
) -> None:
    (tmp_path / "good.tflite").write_bytes(whole)
    (tmp_path / "bad.tflite").write_bytes(damage(whole))
    (tmp_path / "packed").mkdir()
    names = ("good.tflite", "bad.tflite")
    with pytest.raises(ValueError, match=rf"^LiteRT cannot run \S+/bad\.tflite.*{message}"):
        pack_in_child({tmp_path / name: tmp_path / "packed" / name for name in names})
    assert [each.name for each in (tmp_path / "packed").iterdir()] == ["good.tflite"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os; print('a.tflite', flush=True); os.kill(os.getpid(), 11)", "status -11"),
        ("print('a.tflite', flush=True)", "status 0"),
        ("import time; print('a.tflite', flush=True); time.sleep(60)", "it goes on without end"),
    ],
)
def test_every_failure_of_the_child_is_one_error(
    code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.tflite").write_bytes(b"")
    (tmp_path / "child.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(first_opening, "__name__", "child")
    monkeypatch.setattr(first_opening, "_SECONDS", 2)
    with pytest.raises(ValueError, match=rf"^LiteRT cannot run a\.tflite: .*{message}; allowed"):
        pack_in_child({tmp_path / "a.tflite": tmp_path / "a.xnnpack"})
