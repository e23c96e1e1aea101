"""What is timed of an exported model, in a process whose peak of memory is then the model's."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness.timers import best_of
from llada_jax.backend.exported.opened import Exported
from llada_jax.backend.exported.verify import example
from llada_jax.backend.protocol import Bucket, Executable
from llada_jax.backend.recorded_inputs import Watched
from llada_jax.backend.resources import peak_memory
from llada_jax.backend.session import Session, Shard, allocate_cache
from llada_jax.build.denoisers import score_rules
from llada_jax.config import SamplerConfig
from llada_jax.model.finite import require_finite_results
from llada_jax.sampler.generate import decode
from llada_jax.sampler.prompts import with_ids

REPEATS = 7
PROMPT_LENGTH = 64
GEN_LENGTH = 128
BLOCK_LENGTH = 32


def time_steps(folder: Path, rows: Sequence[int]) -> dict[int, dict[str, float]]:
    """Returns best seconds of the body and of the head, by the number of rows."""
    program = Exported(folder)
    return {n: {"layers": _body(program, n), "head": _head(program, n)} for n in rows}


def _body(program: Exported, rows: int) -> float:
    bucket, shards = program.body(rows, 1)
    inputs = example(program.config, range(0), bucket)  # all but the cache
    caches = [allocate_cache(shard) for shard in shards]

    def forward() -> np.ndarray:
        hidden = inputs["hidden"]
        for shard, cache in zip(shards, caches, strict=True):
            hidden = shard.executable.run(inputs | cache | {"hidden": hidden})["hidden"]
        return hidden

    return _best(forward)


def _head(program: Exported, rows: int) -> float:
    bucket, steps = program.head(rows)
    hidden = np.random.default_rng(0).standard_normal((bucket, program.config.width), np.float32)
    inputs = {"hidden": hidden, "penalty": np.zeros(program.config.vocab_size, np.float32)}
    return _best(lambda: steps[f"rows{bucket}"].run(inputs))


def _best(call: Callable[[], object]) -> float:
    require_finite_results("the exported model", call())
    return best_of(call, REPEATS)[1]


class Clock:
    """A `Program` that measures the time in its executables."""

    def __init__(self, program: Exported):
        self._program = program
        self.config, self.head_chunks = program.config, program.head_chunks
        self.largest_head, self.embed = program.largest_head, program.embed
        self.seconds = {"layers": 0.0, "head": 0.0}

    def body(self, rows: int, cache: int) -> tuple[Bucket, list[Shard]]:
        bucket, shards = self._program.body(rows, cache)
        return bucket, [Shard(layers, self._clocked(each, "layers")) for layers, each in shards]

    def head(self, rows: int) -> tuple[int, dict[str, Executable]]:
        size, steps = self._program.head(rows)
        return size, {name: self._clocked(step, "head") for name, step in steps.items()}

    def _clocked(self, executable: Executable, part: str) -> Executable:
        def run(arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
            outputs, seconds = best_of(lambda: executable.run(arrays))
            self.seconds[part] += seconds
            return outputs

        return Watched(executable, run)


def time_generation(folder: Path, tokens_per_step: int) -> dict[str, Any]:
    """Decodes 128 tokens block-wise, and says where the time of the second run went."""
    program = Exported(folder)
    clock, config = Clock(program), program.config
    steps = GEN_LENGTH // tokens_per_step
    sampler = SamplerConfig(
        gen_length=GEN_LENGTH, block_length=BLOCK_LENGTH, steps=steps, cache="blockwise"
    )
    sampler = with_ids(sampler, config)
    denoiser = Session(clock, score_rules(sampler)).denoiser()
    prompts = [np.random.default_rng(0).integers(0, config.vocab_size // 2, PROMPT_LENGTH).tolist()]
    for _ in range(2):  # the first one compiles the sampler's own programs
        clock.seconds.update(layers=0.0, head=0.0)
        result = decode(denoiser, None, config, prompts, sampler, loop="host", trace=True)
    total = float(result.trace.seconds.sum())
    return {
        "seconds": result.seconds,
        **clock.seconds,
        "host_share": 1 - sum(clock.seconds.values()) / total,
        "peak_bytes": peak_memory(),
    }
