"""The suite `llada8b_step`: a model of LLaDA-8B's shape with random weights, run for real.

Each quantization is exported to a scratch folder, timed in processes of its own, and removed. The
baselines are the same layer in JAX and, where it is installed, in PyTorch, and the machine's own
peak of int8 arithmetic.
"""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

import llada_jax as lj
from experiments.bench.hot_paths import forward_of
from experiments.bench.int8_peak import Int8Peak, measure_int8_peak
from experiments.bench.revision_bench import one_layer_of
from experiments.bench.time_exported import BLOCK_LENGTH, GEN_LENGTH, time_generation, time_steps
from experiments.bench.torch_layer import NO_TORCH
from experiments.harness.own_process import in_own_process
from experiments.harness.random_weights import RandomWeights
from experiments.harness.results import ResultRow
from experiments.harness.timers import best_times
from llada_jax.backend.exported.contents import Export
from llada_jax.backend.exported.writer import write_export
from llada_jax.backend.resources import available_cores, require_disk, require_memory
from llada_jax.config import ExportConfig, ModelConfig, Quant, ascending_counts, require
from llada_jax.model.params import abstract_params, init_params, param_count
from llada_jax.model.quantize import quantize

CACHE = 256


@dataclass(frozen=True, kw_only=True)
class StepBenchConfig:
    """What the suite times. The comments are in conf/bench.yaml."""

    rows: tuple[int, ...] = (32, 128)
    quants: tuple[Quant, ...] = ("int8", "int4_block32", "int4_block128")
    scratch: str = "outputs/llada8b_step"
    torch_python: str | None = None
    tokens_per_step: int = 4

    def __post_init__(self) -> None:
        ascending_counts("rows", self.rows)
        require(
            0 < self.tokens_per_step and BLOCK_LENGTH % self.tokens_per_step == 0,
            f"tokens_per_step is {self.tokens_per_step}; allowed: a divisor of {BLOCK_LENGTH}",
        )


def time_llada8b(model: ModelConfig, config: StepBenchConfig, repeats: int) -> Iterator[ResultRow]:
    """Yields all rows of the suite."""
    size = 3 * param_count(model)  # the exported weights, and once more in the kernels' order
    require_disk(Path(config.scratch), size, "an exported model")
    require_memory(int(1.25 * param_count(model)), "running the exported model")
    yield ResultRow("load_average", os.getloadavg()[0], "processes")
    peak = measure_int8_peak(available_cores())
    if peak is not None:
        yield ResultRow(f"int8_peak ({peak.how})", peak.ops_per_second / 1e9, "GOP/s")
    for quant in config.quants:
        yield from _exported(model, config, quant, peak)
    for rows in config.rows:
        yield from _jax_layers(model, rows, repeats)
    yield from _torch_layers(config)


def _exported(
    model: ModelConfig, config: StepBenchConfig, quant: Quant, peak: Int8Peak | None
) -> Iterator[ResultRow]:
    folder = Path(config.scratch) / quant
    shutil.rmtree(folder, ignore_errors=True)
    try:
        sizes = tuple(sorted({32, 64, 128, *config.rows}))
        settings = ExportConfig(quant=quant, rows=sizes, caches=(CACHE,))
        random = RandomWeights(model, quant)
        write_export(folder, Export(model, random, settings, "random weights", verify=False))
        in_own_process(time_steps, folder, [32])  # packs the weights for this CPU
        times = in_own_process(time_steps, folder, config.rows)
        for rows, parts in times.items():
            name = f"litert/{quant}/{rows}"
            yield ResultRow(f"step/{name}", sum(parts.values()), "s")
            yield ResultRow(f"head/{name}", parts["head"], "s")
            yield ResultRow(f"layer/{name}", parts["layers"] / model.n_layers, "s")
        if quant == "int8" and 128 in times and peak is not None:
            specs = jax.tree.leaves(abstract_params(model).layers)
            weights = sum(math.prod(spec.shape) for spec in specs if spec.quantizable)
            operations = 2 * 128 * weights
            share = operations / times[128]["layers"] / peak.ops_per_second
            yield ResultRow("peak_share/int8/128", share, "of the int8 peak")
        yield from _generation(folder, config, quant)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _generation(folder: Path, config: StepBenchConfig, quant: str) -> Iterator[ResultRow]:
    run = in_own_process(time_generation, folder, config.tokens_per_step)
    name = f"generate/litert/{quant}"
    for part in ("seconds", "layers", "head"):
        yield ResultRow(f"{name}/{part}", run[part], "s")
    yield ResultRow(f"{name}/tokens_per_second", GEN_LENGTH / run["seconds"], "tokens/s")
    if run["peak_bytes"] is not None:
        yield ResultRow(f"{name}/peak_gb", run["peak_bytes"] / 1e9, "GB")
    share = "host_share" if quant == "int8" else f"host_share/{quant}"
    yield ResultRow(share, run["host_share"], "of the steps' time")


def _jax_layers(model: ModelConfig, rows: int, repeats: int) -> Iterator[ResultRow]:
    """Times one layer by XLA, against as many cached positions."""
    one = one_layer_of(model)
    wide = init_params(one, jax.random.key(0), jnp.bfloat16)
    integers = jax.tree.map(
        lambda spec, leaf: quantize(leaf, 8) if spec.quantizable else leaf,
        abstract_params(one).layers,
        wide.layers,
    )
    forms = {"bfloat16": wide, "int8": wide._replace(layers=integers)}
    positions = jnp.arange(rows, dtype=jnp.int32)
    candidates = {
        name: forward_of(lj.Model(one, params, None), positions, CACHE)
        for name, params in forms.items()
    }
    for name, seconds in best_times(candidates, repeats).items():
        yield ResultRow(f"layer/xla/{name}/{rows}", seconds, "s")


def _torch_layers(config: StepBenchConfig) -> Iterator[ResultRow]:
    """Times the layer in PyTorch. Raises ValueError with the end of what it says where it fails."""
    python, rows = config.torch_python or sys.executable, ",".join(map(str, config.rows))
    command = [python, "-m", "experiments.bench.torch_layer", rows]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == NO_TORCH:
        print(f"PyTorch's layers are left out: {done.stderr.strip()}", file=sys.stderr)
        return
    require(done.returncode == 0, f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    for name, seconds in json.loads(done.stdout).items():
        yield ResultRow(f"layer/torch/{name}", seconds, "s")
