"""The suite `growth`: how the time of decoding grows with the canvas and the batch, and what a step
takes besides the model.

Forwards of long canvases take turns with PyTorch's fused attention in another process, on the same
shape in float32. Batches decode items of a task. The step is that of a model that computes almost
nothing, in the compiled loop, from Python, and with LiteRT.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

import llada_jax as lj
from experiments.bench.hot_paths import first_forward, forward_after, random_model
from experiments.bench.peak import instruction_sets
from experiments.bench.rivals.contender import Contender, Timed, left_out, running_if_ready
from experiments.harness.questions import prompts_of
from experiments.harness.results import ResultRow
from experiments.harness.timers import best_of, in_turns, spread
from llada_jax.backend.resources import available_cores
from llada_jax.config import ModelConfig, ascending_counts, require
from llada_jax.evaluation.task import TaskItems
from llada_jax.evaluation.tasks import load_task
from llada_jax.sampler.config import SamplerConfig

TASK, BLOCK, PROMPT, STEPS = "word_problems", 32, 64, 128
TRIVIAL = ModelConfig(
    family="llada", vocab_size=256, width=32, n_layers=1, n_heads=1, n_kv_heads=1, head_dim=32,
    ffn_width=32, rope_theta=1e4, norm_eps=1e-5, max_length=PROMPT + STEPS, mask_id=255,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GrowthBenchConfig:
    """Settings of the suite; conf/bench.yaml explains each."""

    canvases: tuple[int, ...] = (1024, 2048, 4096)
    cached: tuple[int, ...] = (256, 1024, 8192)
    batches: tuple[int, ...] = (1, 4, 16, 64)
    torch_python: str | None = None

    def __post_init__(self) -> None:
        for name in ("canvases", "cached", "batches"):
            ascending_counts(name, getattr(self, name))
        require(self.cached[0] >= BLOCK, f"cached has {self.cached[0]}; allowed: {BLOCK} or more")


def time_growth(model: lj.Model, config: GrowthBenchConfig, repeats: int) -> Iterator[ResultRow]:
    """Yields the rows of the suite; those of batches only for a model with a tokenizer."""
    yield ResultRow("cores", available_cores(), "cores", source=instruction_sets())
    yield from _steps(repeats)
    yield from _long_canvases(model, config, repeats)
    if model.tokenizer is not None:
        yield from _batches(model, config, repeats)


def _steps(repeats: int) -> Iterator[ResultRow]:
    """Yields the time of `lj.generate` per step, one token each."""
    model, prompt = random_model(TRIVIAL, 0), np.arange(PROMPT)[None]
    sampler = SamplerConfig.from_flat(gen_length=STEPS, steps=STEPS, block_length=BLOCK,
                                      cache="blockwise")  # fmt: skip
    decode = partial(lj.generate, model, prompt, sampler)
    ways = {name: partial(decode, loop=name) for name in ("compiled", "host")}
    if find_spec("ai_edge_litert"):
        ways["litert"] = partial(decode, loop="host", backend="litert")
    for name, times in in_turns(ways, max(repeats, 9))[1].items():
        each = [1e3 * took.seconds / STEPS for took in times]
        yield from spread(f"growth/step/{name}", each, "ms a step")


def _long_canvases(model: lj.Model, config: GrowthBenchConfig, repeats: int) -> Iterator[ResultRow]:
    forwards = {("first", n): first_forward(model, n) for n in config.canvases}
    forwards |= {("cached", n): forward_after(model, n) for n in config.cached}
    longest = max(*config.canvases, *config.cached)
    options = {"model": dataclasses.asdict(model.config), "block": BLOCK, "longest": longest}
    rival = None
    if config.torch_python is None:
        left_out("torch", "growth.torch_python is null")
    else:
        rival = Contender("torch", "torch_rows", "bfloat16", python=config.torch_python)
    with running_if_ready(rival, options) as torch:
        for (work, length), forward in forwards.items():
            name = f"growth/{work}/{length}"
            params, shape, rows, cache = forward.args
            program = forward.func.lower(params, shape, rows, cache).compile()
            size = program.memory_analysis().temp_size_in_bytes
            yield ResultRow(f"{name}/temporary", size / 2**20, "MiB")
            ours = partial(program, params, rows, cache)
            theirs = torch and partial(torch.ask, work, length)
            yield from _beside_torch(name, ours, theirs, repeats)


def _beside_torch(
    name: str, ours: Callable[[], Any], theirs: Callable[[], Timed] | None, repeats: int
) -> Iterator[ResultRow]:
    clocks = {name: lambda: best_of(ours)[1]}
    if theirs is not None:
        clocks[f"{name}/torch"] = lambda: theirs().seconds
    times: dict[str, list[float]] = {way: [] for way in clocks}
    for turn in range(repeats + 1):
        for way, clock in clocks.items():
            seconds = clock()
            if turn:  # the first one prepares
                times[way].append(seconds)
    for way, taken in times.items():
        yield from spread(way, [1e3 * seconds for seconds in taken], "ms")
    if theirs is not None:
        ratios = [mine / other for mine, other in zip(*times.values(), strict=True)]
        yield from spread(f"{name}/times_torch", ratios, "times as long")


def _batches(model: lj.Model, config: GrowthBenchConfig, repeats: int) -> Iterator[ResultRow]:
    """Yields tokens per second of batches that decode the same number of tokens for each item."""
    task = load_task(TASK)
    items = TaskItems(task=task, count=config.batches[-1])
    prompts = prompts_of(model, (items.item(index).question for index in range(items.count)))
    samplers = {"one_token": {"steps": 64}, "threshold": {"threshold": 0.9}}
    for name, settings in samplers.items():
        sampler = SamplerConfig.from_flat(
            gen_length=64, block_length=BLOCK, cache="dual", **settings
        )
        ways = {
            str(size): partial(lj.generate, model, prompts[:size], sampler)
            for size in config.batches
        }
        first, times = in_turns(ways, repeats)
        for size, took in times.items():
            tokens = np.size(first[size].generated)
            speeds = [tokens / timing.seconds for timing in took]
            yield from spread(f"growth/batch/{name}/{size}", speeds, "tokens/s")
