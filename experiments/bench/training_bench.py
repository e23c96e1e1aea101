"""The suite `training`: training steps beside PyTorch's, and the whole loop beside its step.

Our step and PyTorch's, eager and compiled, take turns on the same shape, batch, precision and
optimizer (AdamW). A turn's first step is not counted: a virtual machine gives unused memory back to
its host within seconds, and the first step of a turn has to wait for it. The loop `train`, with
making of batches, metrics and a checkpoint in every round, takes turns with the same number of bare
steps.
"""

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np

from experiments.bench.rivals.contender import Contender, Missing, left_out, running
from experiments.harness.results import ResultRow
from experiments.harness.timers import spread
from llada_jax.config import ModelConfig, TrainConfig, require_counts
from llada_jax.training.data import Example, batches
from llada_jax.training.loop import read_metrics, train
from llada_jax.training.state import create_state, make_train_step


@dataclass(frozen=True, kw_only=True)
class TrainingBenchConfig:
    """Settings of the suite; conf/bench.yaml explains each."""

    batch_size: int = 32
    length: int = 192
    steps: int = 5
    loop_steps: int = 25
    torch_python: str | None = None

    def __post_init__(self) -> None:
        require_counts(self, "batch_size", "length", "steps", "loop_steps")


def time_training(
    shape: ModelConfig, config: TrainingBenchConfig, repeats: int
) -> Iterator[ResultRow]:
    """Yields tokens per second, and ratios to ours."""
    shape = shape.replace(mask_id=shape.vocab_size - 1, eos_id=shape.vocab_size - 2)
    for dtype in ("float32", "bfloat16"):
        yield from _beside_torch(shape, config, dtype, repeats)
    yield from _whole_loop(shape, config, repeats)


def _settings(config: TrainingBenchConfig, **settings: Any) -> TrainConfig:
    return TrainConfig(
        steps=10_000, batch_size=config.batch_size, objective="pretrain", optimizer="adamw",
        max_gen_length=config.length // 2 // 32 * 32 or 32, block_share=0, length_multiple=32,
    ).replace(**settings)  # fmt: skip


def _example(config: TrainingBenchConfig, vocab_size: int, index: int) -> Example:
    ids = np.random.default_rng(index).integers(0, vocab_size - 2, config.length).tolist()
    half = config.length // 2
    return Example(ids[:half], ids[half:], config.length - half)


class _Steps:
    """Our train step with its state and batches."""

    def __init__(self, shape: ModelConfig, config: TrainingBenchConfig, settings: TrainConfig):
        assert shape.eos_id is not None
        made = batches(lambda i: _example(config, shape.vocab_size, i), settings, shape.eos_id)
        self._batches, self._state = [*islice(made, 2)], create_state(shape, settings)
        self.tokens = self._batches[0].tokens.size
        self._step = make_train_step(shape, settings)
        self._run(2)  # compiles

    def seconds(self, count: int) -> float:
        """Returns the time of `count` steps, after one that is not counted."""
        self._run(1)
        began = time.perf_counter()
        self._run(count)
        return time.perf_counter() - began

    def _run(self, count: int) -> None:
        metrics: Any = None
        for index in range(count):
            self._state, metrics = self._step(self._state, self._batches[index % 2])
        jax.block_until_ready((self._state, metrics))


def _beside_torch(
    shape: ModelConfig, config: TrainingBenchConfig, dtype: Any, repeats: int
) -> Iterator[ResultRow]:
    ours = _Steps(shape, config, _settings(config, matmul_dtype=dtype))
    times: list[float] = []
    for name, compiled in (("torch", False), ("torch_compiled", True)):
        options = {"model": dataclasses.asdict(shape), "compiled": compiled, "dtype": dtype}
        options |= {"batch_size": config.batch_size, "length": config.length}
        contender = Contender(name, "torch_training", dtype, options, config.torch_python or "")
        try:
            if config.torch_python is None:
                raise Missing("training.torch_python is null")
            pairs = []
            with running(contender, {}) as process:
                for _ in range(repeats):
                    mine = ours.seconds(config.steps)
                    process.ask("train", 1)
                    pairs.append((mine, process.ask("train", config.steps).seconds))
        except Missing as error:
            left_out(name, str(error))
            continue
        times += [mine for mine, _ in pairs]
        n_tokens = config.steps * config.batch_size * config.length
        speeds = [n_tokens / theirs for _, theirs in pairs]
        yield from spread(f"training/{dtype}/{name}", speeds, "tokens/s")
        ratios = [theirs / mine * ours.tokens * config.steps / n_tokens for mine, theirs in pairs]
        yield from spread(f"training/{dtype}/ours vs {name}", ratios, "x its tokens/s")
    times = times or [ours.seconds(config.steps) for _ in range(repeats)]
    speeds = [config.steps * ours.tokens / seconds for seconds in times]
    yield from spread(f"training/{dtype}/ours", speeds, "tokens/s")


def _whole_loop(
    shape: ModelConfig, config: TrainingBenchConfig, repeats: int
) -> Iterator[ResultRow]:
    """Yields the time of the loop relative to its step. The loop's evaluation, whose time it does
    not count, runs the bare steps."""
    every = {f"{what}_every": config.loop_steps for what in ("log", "checkpoint", "evaluate")}
    settings = _settings(config, **every, steps=(repeats + 1) * config.loop_steps, decay_steps=1,
                         warmup_steps=1)  # fmt: skip
    bare = _Steps(shape, config, settings)

    def evaluate(_: Any) -> dict[str, float]:
        return {"bare": bare.seconds(config.loop_steps) / config.loop_steps}

    with TemporaryDirectory() as folder:
        train(folder, shape, settings, lambda i: _example(config, shape.vocab_size, i), evaluate,
              progress=False)  # fmt: skip
        rounds = read_metrics(folder)[1:]  # the first one compiles
    ratios = [row["seconds_per_step"] / row["bare"] for row in rounds]
    yield from spread("training/loop vs step", ratios, "x as long")
