"""The suite `packed`: several canvases in one batch against one after the other, in int8.

The model is a slice of the shape: a few layers, more than a processor's cache holds, and a
vocabulary cut in proportion, so that the head keeps its share of the time. Weights are random, so
the number of steps is fixed.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import llada_jax as lj
from experiments.bench.peak import instruction_sets
from experiments.bench.random_weights import export_random, random_params
from experiments.harness.results import ResultRow
from experiments.harness.timers import Timing, in_turns, spread
from llada_jax.backend.resources import available_cores
from llada_jax.config import ExportConfig, ModelConfig, ascending_counts, require, require_counts
from llada_jax.sampler.config import SamplerConfig

PROMPT_LENGTH, TOKENS_PER_STEP, ROWS = 16, 2, (4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, kw_only=True)
class PackedBenchConfig:
    """Settings of the verb; conf/bench.yaml explains each."""

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


def time_packed(shape: ModelConfig, config: PackedBenchConfig, repeats: int) -> Iterator[ResultRow]:
    """Yields the rows of the suite."""
    size = shape.vocab_size * config.layers // shape.n_layers
    ids = {"mask_id": size - 1, "eos_id": None, "eot_id": None, "pad_id": None}
    sliced = shape.replace(n_layers=config.layers, vocab_size=size, **ids)
    yield ResultRow("cores", available_cores(), "cores", source=instruction_sets())
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, size - 1, (config.canvases, PROMPT_LENGTH)).tolist()
    gen, steps = config.gen_length, config.gen_length // TOKENS_PER_STEP
    for backend, model in _models(sliced, config):
        for block in config.block_lengths:
            lengths = {"gen_length": gen, "block_length": block, "steps": steps}
            sampler = SamplerConfig.from_flat(**lengths, cache="blockwise")
            decode = partial(lj.generate, model, config=sampler, backend=backend)
            yield from _compared(f"packed/{backend}/block{block}", decode, prompts, repeats)


def _models(shape: ModelConfig, config: PackedBenchConfig) -> Iterator[tuple[str, lj.Model]]:
    """Yields int8 models with their backends: an export in a temporary folder, and one in
    memory."""
    canvas = -(-(PROMPT_LENGTH + config.gen_length) // 64) * 64
    settings = ExportConfig(rows=ROWS, caches=(canvas,), canvases=(1, config.canvases))
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        export_random(folder, shape, settings)
        yield "litert", lj.load(folder)
    yield "xla", lj.Model(shape, random_params(shape, "int8", dtype="bfloat16"), None)


def _compared(
    name: str, decode: partial[lj.Result], prompts: Sequence[Sequence[int]], repeats: int
) -> Iterator[ResultRow]:
    """Yields tokens per second of both, and ratios within rounds, by wall and processor time."""
    ways = {
        "one_by_one": lambda: [decode([prompt]).generated[0] for prompt in prompts],
        "packed": lambda: decode(prompts).generated,
    }
    first, times = in_turns(ways, repeats)
    tokens = np.stack(first["packed"])
    same = float((tokens == np.stack(first["one_by_one"])).mean())
    yield ResultRow(f"{name}/same_tokens", same, "of all tokens")
    for way, took in times.items():
        yield from spread(f"{name}/{way}", [tokens.size / t.seconds for t in took], "tokens/s")
    for clock, ratio in zip(Timing._fields, ("ratio", "processor_ratio"), strict=True):
        ratios = [
            getattr(a, clock) / getattr(b, clock) for a, b in zip(*times.values(), strict=True)
        ]
        yield from spread(f"{name}/{ratio}", ratios, "x one by one")
    yield ResultRow(f"{name}/load_average", os.getloadavg()[0], "processes")
