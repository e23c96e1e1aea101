"""The suite `start`: what passes before the first forward.

The compiled loop of a shape, from its function to a program; `experiments.generate` as a process,
the first time and again; and an export that is opened, the first time and again.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import jax

import llada_jax as lj
from experiments.bench.hot_paths import HotPathsConfig
from experiments.harness.results import ResultRow
from experiments.harness.timers import best_of
from llada_jax.build.denoisers import denoiser_for, score_rules
from llada_jax.config import ModelConfig, require_counts
from llada_jax.model.params import init_params
from llada_jax.sampler.prompts import with_ids
from llada_jax.sampler.run import checked_run

WINDOWS = {
    "dual": {"cache": "dual", "threshold": 0.9},
    "blockwise": {"cache": "blockwise", "threshold": 0.9},
    "llada_cpp": {"cache": "blockwise", "window": "multi_block", "accept": "staged"},
}
_OPEN = """
import sys, time
import llada_jax as lj
from llada_jax.backend.exported.opened import Exported
began = time.perf_counter()
Exported(lj.load(sys.argv[1]).artifact)
print(time.perf_counter() - began)
"""
Rows = list[ResultRow]


@dataclass(frozen=True, kw_only=True)
class StartBenchConfig:
    """What the suite times. The comments are in conf/bench.yaml."""

    few_layers: int = 2
    export: str | None = None

    def __post_init__(self) -> None:
        require_counts(self, "few_layers")


def time_start(
    model: str, shape: ModelConfig, config: StartBenchConfig, decoded: HotPathsConfig
) -> Iterator[ResultRow]:
    """Yields lines and seconds of programs, CPU-seconds of processes, and seconds of openings."""
    lengths = {"gen_length": decoded.gen_length, "block_length": decoded.block_length}
    prompt = [0] * decoded.prompt_length
    for name, window in WINDOWS.items():
        sampler = with_ids(lj.SamplerConfig(**lengths, **window), shape)
        yield from _in_a_new_process(
            _compiled_loop, name, shape, config.few_layers, sampler, prompt
        )
    with TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        yield from _generate(model, decoded.repeats, environment)
        if config.export is not None:
            yield from _opening(Path(config.export), decoded.repeats, environment)


def _in_a_new_process(work: Callable[..., Rows], *args: Any) -> Rows:
    """Returns what work returns where no program is kept from earlier."""
    nothing_kept = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    spawn = get_context("spawn")
    with patch.dict(os.environ, nothing_kept), ProcessPoolExecutor(1, mp_context=spawn) as child:
        return child.submit(work, *args).result()


def _compiled_loop(
    name: str, shape: ModelConfig, few_layers: int, sampler: lj.SamplerConfig, prompt: list[int]
) -> Rows:
    few, _ = _lowered(shape.replace(n_layers=few_layers), sampler, prompt)
    lowered, lowering = _lowered(shape, sampler, prompt)
    _, compiling = best_of(lambda: lowered.compile())
    lines, fewer = (program.as_text().count("\n") for program in (lowered, few))
    return [
        ResultRow(f"start/{name}/lines", lines, "lines"),
        ResultRow(f"start/{name}/lines_by_depth", lines / fewer, f"x those of {few_layers} layers"),
        ResultRow(f"start/{name}/lower", lowering, "s"),
        ResultRow(f"start/{name}/compile", compiling, "s"),
    ]


def _lowered(
    shape: ModelConfig, sampler: lj.SamplerConfig, prompt: list[int]
) -> tuple[jax.stages.Lowered, float]:
    """Lowers a loop for bfloat16 weights that need not be there; returns the seconds as well."""
    weights = jax.eval_shape(partial(init_params, shape, dtype="bfloat16"), jax.random.key(0))
    denoiser = denoiser_for(shape, score_rules(sampler))
    run = checked_run(denoiser, weights, shape, [prompt], sampler)
    return best_of(run.lowered)


def _generate(model: str, repeats: int, environment: dict[str, str]) -> Iterator[ResultRow]:
    """Yields the CPU-seconds of a process that starts, loads, and decodes with what it compiles."""
    command = [sys.executable, "-m", "experiments.generate", f"model={model}", "loop=compiled"]
    command += ["plain_sampler=false"]
    with TemporaryDirectory() as folder:
        runs = [
            _cpu_seconds([*command, f"hydra.run.dir={folder}/{turn}"], environment)
            for turn in range(repeats + 1)
        ]
    first, *again = runs
    yield ResultRow("start/generate/first", first, "CPU s")
    yield ResultRow("start/generate/again", min(again), "CPU s", n=len(again))
    yield ResultRow("start/generate/again vs first", first / min(again), "x faster")


def _cpu_seconds(command: list[str], environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def _opening(export: Path, repeats: int, environment: dict[str, str]) -> Iterator[ResultRow]:
    """Yields the seconds in which a new process opens an export whose weights are packed for this
    CPU: its files are hashed, then known by their size and times."""
    _opened(export, os.environ)
    first, *again = [_opened(export, environment) for _ in range(repeats + 1)]
    size = sum(file.stat().st_size for file in export.iterdir())
    yield ResultRow("start/export/size", size / 1e9, "GB")
    yield ResultRow("start/export/first", first, "s")
    yield ResultRow("start/export/again", min(again), "s", n=len(again))
    yield ResultRow("start/export/again vs first", first / min(again), "x faster")


def _opened(export: Path, environment: Mapping[str, str]) -> float:
    command = [sys.executable, "-c", _OPEN, str(export)]
    told = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    return float(told.stdout)
