"""The suite `packed`: several canvases in one batch, against one after the other, in int8.

A slice of the model: some layers of its width, which no processor's cache holds, and a vocabulary
cut in proportion, so that the head keeps its share. Weights are random, so the steps are fixed.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from experiments.bench.rivals.figures import instruction_sets
from experiments.bench.spread import require_quartiles, spread
from experiments.harness.random_weights import RandomWeights, random_params
from experiments.harness.results import ResultRow
from llada_jax.backend.exported.contents import Export
from llada_jax.backend.exported.opened import Exported
from llada_jax.backend.exported.writer import write_export
from llada_jax.backend.resources import available_cores
from llada_jax.backend.session import Session
from llada_jax.build.denoisers import denoiser_for, score_rules
from llada_jax.config import (
    ExportConfig,
    ModelConfig,
    SamplerConfig,
    ascending_counts,
    require,
    require_counts,
)
from llada_jax.sampler.generate import Result, decode
from llada_jax.sampler.prompts import with_ids

PROMPT_LENGTH, TOKENS_PER_STEP, ROWS = 16, 2, (4, 8, 16, 32, 64, 128)
Decode = Callable[[list[list[int]], int], Result]
"""`decode(prompts, block_length)`."""


@dataclass(frozen=True, kw_only=True)
class PackedBenchConfig:
    """What the suite times. The comments are in conf/bench.yaml."""

    canvases: int = 4
    layers: int = 3
    block_lengths: tuple[int, ...] = (4, 8, 32)
    gen_length: int = 32

    def __post_init__(self) -> None:
        ascending_counts("block_lengths", self.block_lengths)
        require_counts(self, "layers", "gen_length")
        require_counts(self, "canvases", least=2)
        for block in self.block_lengths:
            require(
                self.gen_length % block == 0 == block % TOKENS_PER_STEP,
                f"block_lengths has {block}; allowed: divisors of gen_length "
                f"({self.gen_length}), multiples of {TOKENS_PER_STEP}",
            )


def time_packed(model: ModelConfig, config: PackedBenchConfig, repeats: int) -> Iterator[ResultRow]:
    """Returns the rows of the suite. Raises ValueError for what it cannot time."""
    require_quartiles(repeats)
    size = model.vocab_size * config.layers // model.n_layers
    ids = {"mask_id": size - 1, "eos_id": None, "eot_id": None, "pad_id": None}
    sliced = model.replace(n_layers=config.layers, vocab_size=size, **ids)
    return _timed(sliced, config, repeats)


def _timed(model: ModelConfig, config: PackedBenchConfig, repeats: int) -> Iterator[ResultRow]:
    yield ResultRow("cores", available_cores(), "cores", source=instruction_sets())
    rng = np.random.default_rng(0)
    shape = config.canvases, PROMPT_LENGTH
    prompts = rng.integers(0, model.vocab_size - 1, shape).tolist()
    for name, runtime in (("litert", _litert), ("xla", _xla)):
        run = runtime(model, config)
        for block in config.block_lengths:
            yield from _compared(f"packed/{name}/block{block}", run, prompts, block, repeats)


def _compared(
    name: str, run: Decode, prompts: list[list[int]], block: int, repeats: int
) -> Iterator[ResultRow]:
    """Yields tokens a second of both, in turns, and the ratios of neighbours: by the clock, and
    by the seconds of the processor, which other processes disturb less."""
    ways = {
        "one_by_one": lambda: [run([prompt], block).generated[0] for prompt in prompts],
        "packed": lambda: run(prompts, block).generated,
    }
    first = {way: np.stack(call()) for way, call in ways.items()}  # compiles
    same = float((first["packed"] == first["one_by_one"]).mean())
    yield ResultRow(f"{name}/same_tokens", same, "of all tokens")
    took: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for turn in range(repeats):
        for way in sorted(ways, reverse=turn % 2 == 1):
            began = time.perf_counter(), time.process_time()
            ways[way]()
            took[way].append((time.perf_counter() - began[0], time.process_time() - began[1]))
    for way, times in took.items():
        speeds = [first[way].size / seconds for seconds, _ in times]
        yield from spread(f"{name}/{way}", speeds, "tokens/s")
    for index, clock in enumerate(("ratio", "processor_ratio")):
        ratios = [a[index] / b[index] for a, b in zip(*took.values(), strict=True)]
        yield from spread(f"{name}/{clock}", ratios, "x one by one")
    yield ResultRow(f"{name}/load_average", os.getloadavg()[0], "processes")


def _sampler(config: PackedBenchConfig, block: int) -> SamplerConfig:
    gen, steps = config.gen_length, config.gen_length // TOKENS_PER_STEP
    return SamplerConfig(gen_length=gen, block_length=block, steps=steps, cache="blockwise")


def _litert(model: ModelConfig, config: PackedBenchConfig) -> Decode:
    """Returns the decoding of an export, whose folder is gone once it is open."""
    canvas = -(-(PROMPT_LENGTH + config.gen_length) // 64) * 64
    settings = ExportConfig(rows=ROWS, caches=(canvas,), canvases=(1, config.canvases))
    with TemporaryDirectory() as scratch:  # what is open stays
        folder, weights = Path(scratch) / "model", RandomWeights(model, "int8")
        write_export(folder, Export(model, weights, settings, "random", verify=False))
        denoiser = Session(Exported(folder), score_rules(with_ids(SamplerConfig(), model)))
    run = partial(decode, denoiser.denoiser(), None, model, loop="host")
    return lambda prompts, block: run(prompts, _sampler(config, block))


def _xla(model: ModelConfig, config: PackedBenchConfig) -> Decode:
    denoiser = denoiser_for(model, score_rules(with_ids(SamplerConfig(), model)))
    run = partial(decode, denoiser, random_params(model, "int8", dtype="bfloat16"), model)
    return lambda prompts, block: run(prompts, _sampler(config, block))
