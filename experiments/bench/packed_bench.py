"""The suite `packed`: several canvases in one batch, against one after the other, in int8.

A slice of the model: some layers of its width, which no processor's cache holds, and a vocabulary
cut in proportion, so that the head keeps its share. Weights are random, so the steps are fixed.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from jaxtyping import Int

from experiments.bench.rivals.figures import instruction_sets, spread
from experiments.bench.rivals.ours import random_params
from experiments.harness.random_weights import RandomWeights
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

PROMPT_LENGTH, ROWS = 16, (4, 8, 16, 32, 64, 128)
Decode = Callable[[list[list[int]], int], Result]
"""`decode(prompts, block_length)`."""


@dataclass(frozen=True, kw_only=True)
class PackedBenchConfig:
    """What the suite times. The comments are in conf/bench.yaml."""

    canvases: int = 4
    layers: int = 3
    block_lengths: tuple[int, ...] = (4, 8, 32)
    gen_length: int = 32
    tokens_per_step: int = 2
    scratch: str = "outputs/packed"

    def __post_init__(self) -> None:
        ascending_counts("block_lengths", self.block_lengths)
        require_counts(self, "canvases", "layers", "gen_length", "tokens_per_step")
        for block in self.block_lengths:
            require(
                self.gen_length % block == 0 == block % self.tokens_per_step,
                f"block_lengths has {block}; allowed: divisors of gen_length "
                f"({self.gen_length}), multiples of tokens_per_step ({self.tokens_per_step})",
            )


def time_packed(model: ModelConfig, config: PackedBenchConfig, repeats: int) -> Iterator[ResultRow]:
    """Returns the rows of the suite. Raises ValueError for what it cannot time."""
    require(repeats > 1, f"repeats is {repeats}; allowed: 2 or more, of which quartiles are taken")
    require(
        config.layers <= model.n_layers,
        f"layers is {config.layers}; allowed: up to the model's {model.n_layers}",
    )
    return _timed(_sliced(model, config.layers), config, repeats)


def _sliced(model: ModelConfig, layers: int) -> ModelConfig:
    vocabulary = model.vocab_size * layers // model.n_layers
    none = dict.fromkeys(("eos_id", "eot_id", "pad_id"))
    return model.replace(n_layers=layers, vocab_size=vocabulary, mask_id=vocabulary - 1, **none)


def _timed(model: ModelConfig, config: PackedBenchConfig, repeats: int) -> Iterator[ResultRow]:
    yield ResultRow("cores", available_cores(), "cores", source=instruction_sets())
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, model.vocab_size - 1, PROMPT_LENGTH).tolist()
               for _ in range(config.canvases)]  # fmt: skip
    for name, runtime in (("litert", _litert), ("xla", _xla)):
        run = runtime(model, config)
        for block in config.block_lengths:
            yield from _compared(f"packed/{name}/block{block}", run, prompts, block, repeats)


def _compared(
    name: str, run: Decode, prompts: list[list[int]], block: int, repeats: int
) -> Iterator[ResultRow]:
    """Yields tokens a second in both ways, in turns, and the ratio of neighbours."""
    ways = {
        "one_by_one": lambda: [run([prompt], block).generated[0] for prompt in prompts],
        "packed": lambda: run(prompts, block).generated,
    }
    first = {way: np.stack(call()) for way, call in ways.items()}  # compiles
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(repeats):
        for way in sorted(ways, reverse=turn % 2 == 1):
            speeds[way].append(_tokens_a_second(ways[way]))
    for way, each in speeds.items():
        yield from spread(f"{name}/{way}", each, "tokens/s")
    ratios = [b / a for a, b in zip(*speeds.values(), strict=True)]
    yield from spread(f"{name}/ratio", ratios, "x one by one")
    same = float((first["packed"] == first["one_by_one"]).mean())
    yield ResultRow(f"{name}/same_tokens", same, "of all tokens")
    yield ResultRow(f"{name}/load_average", os.getloadavg()[0], "processes")


def _tokens_a_second(call: Callable[[], list[Int[np.ndarray, " G"]]]) -> float:
    began = time.perf_counter()
    tokens = sum(map(len, call()))
    return tokens / (time.perf_counter() - began)


def _sampler(config: PackedBenchConfig, block: int) -> SamplerConfig:
    steps = config.gen_length // config.tokens_per_step
    return SamplerConfig(
        gen_length=config.gen_length, block_length=block, steps=steps, cache="blockwise"
    )


def _litert(model: ModelConfig, config: PackedBenchConfig) -> Decode:
    """Returns the decoding of an export, whose folder is gone once it is open."""
    Path(config.scratch).mkdir(parents=True, exist_ok=True)
    folder = Path(mkdtemp(dir=config.scratch))
    sizes = tuple(sorted({1, config.canvases}))
    canvas = -(-(PROMPT_LENGTH + config.gen_length) // 64) * 64
    settings = ExportConfig(quant="int8", rows=ROWS, caches=(canvas,), canvases=sizes)
    try:
        weights = RandomWeights(model, "int8")
        write_export(folder / "model", Export(model, weights, settings, "random", verify=False))
        rules = score_rules(with_ids(SamplerConfig(), model))
        denoiser = Session(Exported(folder / "model"), rules).denoiser()
    finally:
        shutil.rmtree(folder)  # what is open stays

    def run(prompts: list[list[int]], block: int) -> Result:
        return decode(denoiser, None, model, prompts, _sampler(config, block), loop="host")

    return run


def _xla(model: ModelConfig, config: PackedBenchConfig) -> Decode:
    params = random_params(model, "int8")
    rules = score_rules(with_ids(SamplerConfig(), model))
    run = partial(decode, denoiser_for(model, rules), params, model)
    return lambda prompts, block: run(prompts, _sampler(config, block))
