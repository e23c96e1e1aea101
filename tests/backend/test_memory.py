"""An export needs little memory: weights pass through it tensor by tensor.

The process grows, at its peak, by less than the largest tensors take in float32, whatever the size
of the checkpoint. Checking the files against JAX needs the memory of running them.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.checkpoint.test_memory import dense_config, write_large_checkpoint

PROCESS = """
import json, re, sys
import llada_jax as lj
from llada_jax.backend.litert import install

def status(key):
    return 1024 * int(re.search(rf"{key}:\\s+(\\d+)", open("/proc/self/status").read())[1])

source, folder, verify = sys.argv[1], sys.argv[2], sys.argv[3] == "verify"
small = lj.ExportConfig(quant="int8", rows=(4,), caches=(32,))
lj.export("tiny", folder + "-warm", small, verify=verify)  # libraries are loaded from here on
open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
before = status("VmRSS")
settings = lj.ExportConfig(quant=sys.argv[4], rows=(4,), caches=(32,), shard_bytes=200_000_000)
manifest = lj.export(source, folder, settings, verify=verify)
print(json.dumps({
    "grown": status("VmHWM") - before,
    "written": sum(file.bytes for file in manifest.files),
}))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc"),
]


class Memory(NamedTuple):
    """The process's growth at its peak and the size of the files written, in bytes."""

    grown: int
    written: int


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six layers, 600 MB in bfloat16, in three files."""
    pytest.importorskip("ai_edge_litert", reason="needs the extra npu")
    pytest.importorskip("litert_converter", reason="needs the extra npu")
    folder = tmp_path_factory.mktemp("checkpoint")
    write_large_checkpoint(folder, dense_config(1792, 6), 3)
    return folder


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def measure(checkpoint: Path, folder: Path, verify: str, quant: str) -> Memory:
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(checkpoint), str(folder), verify, quant],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    memory = Memory(**json.loads(done.stdout))
    print(f"{quant}, {verify}: {memory}, checkpoint {size(checkpoint)}")
    return memory


@pytest.mark.parametrize("quant", ["int8", "int4_block32", "float32"])
def test_an_exports_memory_is_smaller_than_the_model(
    quant: str, checkpoint: Path, tmp_path: Path
) -> None:
    assert size(checkpoint) > 590 * 10**6
    memory = measure(checkpoint, tmp_path / "model", "plain", quant)
    assert memory.written > {"int4_block32": 0.3, "int8": 0.5, "float32": 1.9}[quant] * size(
        checkpoint
    )
    assert memory.grown < size(checkpoint) / 4


def test_checking_an_export_holds_one_file_at_a_time(checkpoint: Path, tmp_path: Path) -> None:
    memory = measure(checkpoint, tmp_path / "model", "verify", "int8")
    assert memory.grown < size(checkpoint)
