"""Loading needs little more memory than the parameters.

The bound: the process grows, at its peak, by the final parameters and twice the largest tensor.
Measured beyond the parameters, for a 2 GB checkpoint with a largest tensor of 105 MB: 2 to 3 MB
in bfloat16, 5 to 20 MB in int8.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from llada_jax.checkpoint.config_json import config_from_hf
from llada_jax.checkpoint.sources import param_sources, tensor_shapes
from llada_jax.model.families.family import families

PROCESS = """
import json, re, sys
import jax, jax.numpy as jnp
from llada_jax.checkpoint import load_params
from llada_jax.model.quantize import quantize
import numpy as np

def status(key):
    return 1024 * int(re.search(rf"{key}:\\s+(\\d+)", open("/proc/self/status").read())[1])

quantize(np.ones((2, 32), np.float32), 8).values.block_until_ready()
open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
before = status("VmRSS")
_, params, _ = load_params(sys.argv[1], sys.argv[2])
print(json.dumps({
    "grown": status("VmHWM") - before,
    "final": sum(leaf.nbytes for leaf in jax.tree.leaves(params)),
}))
"""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc"
)


class Memory(NamedTuple):
    """The process's growth at its peak and the size of the parameters, in bytes."""

    grown: int
    final: int


def dense_config(width: int, n_layers: int) -> dict[str, Any]:
    return {
        "model_type": "llada",
        "d_model": width,
        "n_layers": n_layers,
        "n_heads": width // 128,
        "mlp_hidden_size": 3 * width,
        "embedding_size": 8 * width,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
    }


def moe_config(width: int, n_layers: int) -> dict[str, Any]:
    return {
        "model_type": "llada2_moe",
        "hidden_size": width,
        "num_hidden_layers": n_layers,
        "num_attention_heads": width // 128,
        "num_key_value_heads": width // 256,
        "intermediate_size": 3 * width,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": width // 2,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "vocab_size": 4 * width,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
    }


def write_large_checkpoint(folder: Path, hf: dict[str, Any], n_shards: int) -> int:
    """Shards of bfloat16; the largest leaf of the model in bytes."""
    config = config_from_hf(hf)
    placed = param_sources(config, families()[config.family].names)
    shapes = tensor_shapes(placed)
    noise = np.random.default_rng(0).standard_normal(1 << 16).astype(jnp.bfloat16)
    shard_of = {}
    for index in range(n_shards):
        shard = f"model-{index + 1:05}-of-{n_shards:05}.safetensors"
        names = sorted(shapes)[index::n_shards]
        save_file({name: np.resize(noise, shapes[name]) for name in names}, folder / shard)
        shard_of.update(dict.fromkeys(names, shard))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shard_of}))
    (folder / "config.json").write_text(json.dumps(hf))
    return max(2 * int(np.prod(place.spec.shape)) for place in placed)


def measure(folder: Path, dtype: str) -> Memory:
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(folder), dtype],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return Memory(**json.loads(done.stdout))


def assert_memory_stays_low(folder: Path, hf: dict[str, Any], n_shards: int, at_least: int) -> None:
    largest = write_large_checkpoint(folder, hf, n_shards)
    for dtype, bytes_per_element in (("bfloat16", 2), ("int8", 1)):
        memory = measure(folder, dtype)
        print(f"{dtype}: {memory}, largest tensor {largest}")
        assert memory.final > bytes_per_element * at_least / 2
        assert 0.9 * memory.final < memory.grown <= memory.final + 2 * largest


def test_peak_memory_at_200_megabytes(tmp_path: Path) -> None:
    assert_memory_stays_low(tmp_path, dense_config(1024, 6), 3, 180 * 10**6)


@pytest.mark.slow
def test_peak_memory_at_2_gigabytes(tmp_path: Path) -> None:
    assert_memory_stays_low(tmp_path, dense_config(2560, 10), 8, 1800 * 10**6)


@pytest.mark.slow
def test_peak_memory_of_experts(tmp_path: Path) -> None:
    assert_memory_stays_low(tmp_path, moe_config(1536, 6), 5, 500 * 10**6)
