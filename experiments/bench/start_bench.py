"""The suites `start` and `loading`: the time from a command to the first forward.

`start` times the lowering and compilation of the compiled loop, opening an export, first answers
under constraints, and `experiments.generate` as a process, the first time and again. `loading`
times `lj.load` with and without the check that every number of a checkpoint is finite.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import jax

import llada_jax as lj
from experiments.bench.random_weights import export_random
from experiments.harness.results import ResultRow
from experiments.harness.timers import best_of, in_new_process, spread, times_in_turns
from llada_jax.api.denoisers import denoiser_for, score_rules
from llada_jax.backend.exported.opened import ExportedProgram
from llada_jax.checkpoint import save_huggingface, sources
from llada_jax.config import ExportConfig, ModelConfig, require_counts
from llada_jax.model.params import init_params
from llada_jax.sampler.generate import checked_run
from llada_jax.sampler.prompts import with_ids

WINDOWS = {
    "dual": {"cache": "dual", "threshold": 0.9},
    "blockwise": {"cache": "blockwise", "threshold": 0.9},
    "llada_cpp": {"cache": "blockwise", "window": "multi_block", "accept": "staged"},
}
FEW_LAYERS = 2
NOTHING_KEPT = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
"""Environment without JAX's compilation cache."""
OPENED = ExportConfig(quant="int8", rows=(32,), caches=(256,))


@dataclass(frozen=True, kw_only=True)
class StartBenchConfig:
    """Settings of the verb; conf/bench.yaml explains each."""

    prompt_length: int = 64
    gen_length: int = 128
    block_length: int = 32
    opening_layers: int = FEW_LAYERS
    scratch: str = "outputs/opening"

    def __post_init__(self) -> None:
        require_counts(self, "prompt_length", "opening_layers")
        _ = lj.SamplerConfig.from_flat(**self.lengths)  # checks them

    @property
    def lengths(self) -> dict[str, int]:
        return {"gen_length": self.gen_length, "block_length": self.block_length}


def time_start(
    model: str, shape: ModelConfig, config: StartBenchConfig, repeats: int
) -> Iterator[ResultRow]:
    """Yields the size and the seconds of programs, and the CPU seconds of processes."""
    prompt = [0] * config.prompt_length
    for name, window in WINDOWS.items():
        sampler = with_ids(lj.SamplerConfig.from_flat(**config.lengths, **window), shape)
        arguments = name, shape, sampler, prompt
        yield from in_new_process(_compiled_loop, *arguments, environment=NOTHING_KEPT)
    opened = shape.replace(n_layers=config.opening_layers)
    yield from _time_opening(opened, Path(config.scratch), repeats)
    yield from in_new_process(_first_answers, model, environment=NOTHING_KEPT)
    yield from _time_generate(model, repeats)


def _time_opening(shape: ModelConfig, scratch: Path, repeats: int) -> Iterator[ResultRow]:
    """Yields the seconds to open an int8 export of random weights in a new process, first without
    cached hashes. The export is a temporary folder in `scratch`."""
    scratch.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=scratch) as name:
        folder = Path(name) / "exported"
        written = export_random(folder, shape, OPENED)
        gigabytes = sum(file.bytes for file in written.files) / 1e9
        yield ResultRow("start/opening/files", gigabytes, "GB")
        environment = {"XDG_CACHE_HOME": f"{name}/cache"}
        opening = partial(in_new_process, _opening_seconds, folder, environment=environment)
        first = opening()
        yield ResultRow("start/opening/first", first, "s, weights packed for this CPU")
        for file in folder.iterdir():
            file.touch()
        hashed, *again = (opening() for _ in range(repeats + 1))
    yield ResultRow("start/opening/hashed", hashed, "s")
    yield ResultRow("start/opening/again", min(again), "s", n=len(again))
    yield ResultRow("start/opening/again vs hashed", hashed / min(again), "x faster")


def _opening_seconds(folder: Path) -> float:
    return best_of(partial(ExportedProgram, folder))[1]


def _first_answers(source: str) -> list[ResultRow]:
    """Returns the CPU seconds of answers under constraints that are new to the process: the first
    one, one with tables of the same size, and one with larger tables."""
    model, sampler = lj.load(source), lj.SamplerConfig.preset("blockwise")
    assert model.tokenizer is not None
    prompt = model.tokenizer.encode_chat([{"role": "user", "content": "Is 7 odd?"}])
    texts = {"type": "string", "maxLength": 20}
    schema = {"type": "object", "properties": dict.fromkeys("abcdefgh", texts), "required": ["a"]}
    constraints = {
        "first": lj.choice(["yes", "no"]),
        "same size": lj.choice(["true", "false"]),
        "larger": lj.json_schema(schema),
    }
    rows = []
    for name, constraint in constraints.items():
        began = time.process_time()
        lj.generate(model, [prompt], sampler, constraint=constraint)
        rows.append(ResultRow(f"start/constraint/{name}", time.process_time() - began, "CPU s"))
    return rows


def _compiled_loop(
    name: str, shape: ModelConfig, sampler: lj.SamplerConfig, prompt: list[int]
) -> list[ResultRow]:
    few, _ = _lowered(shape.replace(n_layers=FEW_LAYERS), sampler, prompt)
    lowered, lowering = _lowered(shape, sampler, prompt)
    compiling, less = (best_of(program.compile)[1] for program in (lowered, few))
    lines, fewer = (program.as_text().count("\n") for program in (lowered, few))
    return [
        ResultRow(f"start/{name}/lines", lines, "lines"),
        ResultRow(f"start/{name}/lines_by_depth", lines / fewer, f"x those of {FEW_LAYERS} layers"),
        ResultRow(f"start/{name}/lower", lowering, "s"),
        ResultRow(f"start/{name}/compile", compiling, "s"),
        ResultRow(f"start/{name}/compile_by_depth", compiling / less, f"x {FEW_LAYERS} layers'"),
    ]


def _lowered(
    shape: ModelConfig, sampler: lj.SamplerConfig, prompt: list[int]
) -> tuple[jax.stages.Lowered, float]:
    """Lowers a loop for bfloat16 weights, of which only shapes are needed; returns the seconds as
    well."""
    weights = jax.eval_shape(partial(init_params, shape, dtype="bfloat16"), jax.random.key(0))
    denoiser = denoiser_for(shape, score_rules(sampler))
    run = checked_run(denoiser, weights, shape, [prompt], sampler)
    return best_of(run.lowered)


def _time_generate(model: str, repeats: int) -> Iterator[ResultRow]:
    """Yields the CPU seconds of a process that starts, loads, compiles and decodes."""
    command = [sys.executable, "-m", "experiments.generate", f"model={model}", "loop=compiled"]
    command += ["plain_sampler=false", "phones=[]"]
    with TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": f"{folder}/cache"}
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        first, *again = (
            _cpu_seconds([*command, f"hydra.run.dir={folder}/{turn}"], environment)
            for turn in range(repeats + 1)
        )
    yield ResultRow("start/generate/first", first, "CPU s")
    yield ResultRow("start/generate/again", min(again), "CPU s", n=len(again))
    yield ResultRow("start/generate/again vs first", first / min(again), "x faster")


def _cpu_seconds(command: list[str], environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def time_loading(model: lj.Model, repeats: int) -> Iterator[ResultRow]:
    """Yields the seconds of `lj.load` with and without the check, in alternation: for files that
    are new, and so hashed, and for known ones. The files are in the system's page cache."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        save_huggingface(folder, model.config, model.params)
        for when, load in (("first", _load_first), ("again", lj.load)):
            unchecked = partial(_unchecked, load, folder)
            ways = {"unchecked": unchecked, "checked": partial(load, folder)}
            times = times_in_turns(ways, repeats)
            for way, seconds in times.items():
                yield from spread(f"loading/{when}/{way}", seconds, "s")
            ratios = [b / a for a, b in zip(*times.values(), strict=True)]
            yield from spread(f"loading/{when}/checked vs unchecked", ratios, "x as long")


def _unchecked(load: Callable[[Path], lj.Model], folder: Path) -> lj.Model:
    with patch.object(sources, "all_finite", lambda numbers: True):
        return load(folder)


def _load_first(folder: Path) -> lj.Model:
    """Loads files with new modification times, so that their hashes are not cached."""
    for file in folder.iterdir():
        file.touch()
    return lj.load(folder)
