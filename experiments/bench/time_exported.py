"""Times an exported model in a process of its own, whose peak of memory is then the model's.

    python -m experiments.bench.time_exported <folder> steps 32,128
    python -m experiments.bench.time_exported <folder> generate 4

The first gives seconds of the layers and of the head for each number of rows. The second decodes
128 tokens block-wise, with the threshold at which a step commits that many tokens on average, and
says where the time went. Each prints one line of JSON.
"""

import json
import math
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.harness.timers import best_of
from llada_jax.backend.exported.opened import Exported
from llada_jax.backend.protocol import Bucket, Executable
from llada_jax.backend.session import Session, Shard
from llada_jax.build.denoisers import score_rules
from llada_jax.config import SamplerConfig
from llada_jax.sampler.generate import Result, decode
from llada_jax.sampler.prompts import with_ids

REPEATS = 7
PROMPT_LENGTH = 64
GEN_LENGTH = 128
BLOCK_LENGTH = 32
_SEARCH_STEPS = 8
_TOLERANCE = 0.15


def time_steps(program: Exported, rows: Sequence[int]) -> dict[str, dict[str, float]]:
    """Returns best seconds of the body and of the head, by the number of rows."""
    return {str(n): {"layers": _body(program, n), "head": _head(program, n)} for n in rows}


def _body(program: Exported, rows: int) -> float:
    config = program.config
    bucket, shards = program.body(rows, 1)
    half = config.rotary_dims // 2
    inputs = {
        "hidden": _noise(rows, config.width),
        "cos": np.ones((rows, half), np.float32),
        "sin": np.zeros((rows, half), np.float32),
        "bias": np.zeros((rows, bucket.cache + rows), np.float32),
    }
    caches = [
        {
            name: shard.executable.allocate(name)
            for layer in shard.layers
            for name in (f"keys_{layer}", f"values_{layer}")
        }
        for shard in shards
    ]

    def forward() -> None:
        hidden = inputs["hidden"]
        for shard, cache in zip(shards, caches, strict=True):
            hidden = shard.executable.run(inputs | cache | {"hidden": hidden})["hidden"]

    return _best(forward)


def _head(program: Exported, rows: int) -> float:
    bucket, steps = program.head(rows)
    penalty = np.zeros(program.config.vocab_size, np.float32)
    inputs = {"hidden": _noise(bucket, program.config.width), "penalty": penalty}
    return _best(lambda: steps[f"rows{bucket}"].run(inputs))


def _noise(rows: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, width), np.float32)


def _best(call: Callable[[], object]) -> float:
    call()
    return best_of(call, REPEATS)[1]


class Clock:
    """A `Program` that measures the time in its executables."""

    def __init__(self, program: Exported):
        self._program = program
        self.config, self.head_chunks = program.config, program.head_chunks
        self.largest_head = program.largest_head
        self.embed = program.embed
        self.seconds = {"layers": 0.0, "head": 0.0}

    def body(self, rows: int, cache: int) -> tuple[Bucket, list[Shard]]:
        bucket, shards = self._program.body(rows, cache)
        return bucket, [
            Shard(shard.layers, _Clocked(shard.executable, self.seconds, "layers"))
            for shard in shards
        ]

    def head(self, rows: int) -> tuple[int, Mapping[str, Executable]]:
        bucket, steps = self._program.head(rows)
        name = f"rows{bucket}"
        return bucket, {**steps, name: _Clocked(steps[name], self.seconds, "head")}


class _Clocked:
    def __init__(self, executable: Executable, seconds: dict[str, float], part: str):
        self._executable, self._seconds, self._part = executable, seconds, part
        self.allocate = executable.allocate

    def run(self, arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        began = time.perf_counter()
        outputs = self._executable.run(arrays)
        self._seconds[self._part] += time.perf_counter() - began
        return outputs


def generate(program: Exported, tokens_per_step: float) -> dict[str, float]:
    """Decodes with a threshold that commits about `tokens_per_step`; times the second run."""
    clock = Clock(program)
    threshold = find_threshold(clock, tokens_per_step)
    _decode(clock, threshold, GEN_LENGTH)  # compiles the sampler's own programs
    clock.seconds.update(layers=0.0, head=0.0)
    result = _decode(clock, threshold, GEN_LENGTH)
    assert result.trace is not None
    total = float(result.trace.seconds.sum())
    return {
        "seconds": result.seconds,
        "forwards": float(result.nfe[0]),
        "tokens_per_forward": result.tpf,
        "threshold": threshold,
        **clock.seconds,
        "host_share": 1 - sum(clock.seconds.values()) / total,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def find_threshold(program: Clock, tokens_per_step: float) -> float:
    """Returns the threshold that commits about so many tokens a step.

    A random model is hardly ever sure: its thresholds lie far below a trained model's. So the
    search is for the logarithm, first between 1 / V and 1 on one block, which is quick, then
    around that on the whole generation.
    """
    first = _bisect(program, tokens_per_step, 1 / program.config.vocab_size, 1.0, BLOCK_LENGTH)
    return _bisect(program, tokens_per_step, first / 4, min(1.0, first * 4), GEN_LENGTH)


def _bisect(
    program: Clock, tokens_per_step: float, low: float, high: float, gen_length: int
) -> float:
    """Returns the tried threshold that comes closest; a random model may jump to all tokens."""
    tried: dict[float, float] = {}
    for _ in range(_SEARCH_STEPS):
        threshold = math.sqrt(low * high)
        found = _decode(program, threshold, gen_length).tpf
        tried[threshold] = abs(math.log(found / tokens_per_step))
        if tried[threshold] <= _TOLERANCE:
            break
        low, high = (threshold, high) if found > tokens_per_step else (low, threshold)
    return min(tried, key=tried.__getitem__)


def _decode(program: Clock, threshold: float, gen_length: int) -> Result:
    sampler = SamplerConfig.preset(
        "fast_dllm",
        gen_length=gen_length,
        block_length=BLOCK_LENGTH,
        steps=gen_length,
        cache="blockwise",
        threshold=threshold,
        confidence_dtype="float32",
    )
    sampler = with_ids(sampler, program.config)
    session = Session(program, score_rules(sampler))
    prompt = np.random.default_rng(0).integers(0, program.config.vocab_size // 2, PROMPT_LENGTH)
    return decode(
        session.denoiser(),
        None,
        program.config,
        [prompt.tolist()],
        sampler,
        loop="host",
        trace=True,
    )


def main(arguments: Sequence[str]) -> None:
    folder, what, value = arguments
    program = Exported(Path(folder))
    if what == "steps":
        print(json.dumps(time_steps(program, [int(n) for n in value.split(",")])))
    else:
        print(json.dumps(generate(program, float(value))))


if __name__ == "__main__":
    main(sys.argv[1:])
