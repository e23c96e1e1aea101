"""Memory of experts within a budget, and reading experts while others run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.bench.random_weights import RandomWeights
from llada_jax.experts.decoding.expert_file import write_experts
from llada_jax.model.architecture import architecture

SCRIPT = """
import json, re, sys
import numpy as np
from llada_jax.backend.resources import peak_memory
from llada_jax.experts.decoding.expert_file import ExpertFile
from llada_jax.experts.decoding.expert_slots import ExpertSlots

def resident_memory():
    return 1024 * int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1])

def restart_peak():
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return False
    return True

file, found = ExpertFile(sys.argv[1]), []
for held in (2, 16):
    before = resident_memory()
    measures = restart_peak()
    resident = np.arange(64) < held
    with ExpertSlots(file, np.tile(resident, (2, 1))) as slots:
        for layer in range(2):
            for expert in slots.request(layer, range(held, 64)):
                slots.matrices(layer, expert)
                slots.evict(layer, expert)
    found.append([measures, slots.memory_bytes, peak_memory() - before, slots.read])
print(json.dumps([found, file.shape.expert_bytes]))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's peaks")
def test_peak_memory_is_bounded_by_the_slots(tmp_path):
    path, config = tmp_path / "experts", architecture("mixture_1b").replace(n_layers=2)
    # By this process: writing would leave memory to the other's allocator, in which slots fit.
    write_experts(path, config, RandomWeights(config, "int8"), "int8")
    command = [sys.executable, "-c", SCRIPT, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found, expert = json.loads(done.stdout)
    for held, (measures, bound, grown, read) in zip((2, 16), found, strict=True):
        assert bound == (2 * held + 3) * expert and read == 2 * (64 - held)
        if measures:
            assert 0.5 * bound < grown < bound + 16e6 < 100e6
