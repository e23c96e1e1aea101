"""A streamed model takes the memory that was asked: the process grows by that much, and no more."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROCESS = """
import gc, json, re, sys
from pathlib import Path
import jax
import numpy as np
from llada_jax.backend.layer_file import LayerFile, write_layers
from llada_jax.backend.streamed_weights import StreamedWeights
from llada_jax.model.params import named_specs
from tests.backend.models import GQA
from tests.backend.test_streamed import kept

def status(key):
    return 1024 * int(re.search(rf"{key}:\\s+(\\d+)", open("/proc/self/status").read())[1])

class Constant:
    def rows(self, name, start=0, stop=None):
        yield np.full(named_specs(config)[name].shape, 0.01, np.float32)

@jax.jit
def read(leaves):
    return sum(leaf.sum() for leaf in leaves)

config = GQA.replace(n_layers=8, width=512, ffn_width=2048, head_dim=128, n_kv_heads=4)
path = Path(sys.argv[1]) / "layers.bin"
layers = write_layers(path, config, Constant()).layers
found = []
for share in (0.25, 0, 0.25, 0.5, 1):  # the first round compiles
    open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
    before = status("VmRSS")
    file = LayerFile(path, layers)
    with StreamedWeights(file, kept(file, share)) as weights:
        for layer in [*range(8)] * 2:
            read(list(weights.acquire(layer).values())).block_until_ready()
            weights.release(layer)
        found.append([share, weights.memory_bytes, status("VmHWM") - before])
    del weights
    gc.collect()
print(json.dumps({"layer": layers[0].size, "shares": found[1:]}))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_the_process_grows_by_the_memory_that_was_asked(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"},  # freed arrays leave the process
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    layer = measured["layer"]
    assert [planned / layer for _, planned, _ in measured["shares"]] == [2, 4, 6, 8]
    for share, planned, grown in measured["shares"]:
        print(f"share {share}: planned {planned / 1e6:.1f} MB, grown {grown / 1e6:.1f} MB")
    for _, planned, grown in measured["shares"]:
        assert abs(grown - planned) < layer / 2
