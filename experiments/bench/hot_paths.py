"""The suite `hot_paths`: each thing that is done often, against its baseline."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int
from tqdm import tqdm

import llada_jax as lj
from experiments.harness.results import ResultRow
from experiments.harness.timers import best_times
from llada_jax.config import SamplerConfig, require_counts
from llada_jax.model.forward import cache_for, forward_rows
from llada_jax.rows import make_rows
from llada_jax.types import RowsOut


@dataclass(frozen=True, kw_only=True)
class HotPathsConfig:
    """What is decoded, and how often it is timed. The comments are in conf/bench.yaml."""

    prompt_length: int = 64
    gen_length: int = 128
    block_length: int = 32
    steps: int = 128
    repeats: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        require_counts(self, "prompt_length", "repeats")
        _ = self.sampler

    @property
    def sampler(self) -> SamplerConfig:
        return SamplerConfig(
            gen_length=self.gen_length, block_length=self.block_length, steps=self.steps
        )

    @property
    def length(self) -> int:
        """Positions of a canvas."""
        return self.prompt_length + self.gen_length


class Comparison(NamedTuple):
    """Ways of doing one thing."""

    name: str
    baseline: str
    candidates: Mapping[str, Callable[[], Any]]


def time_hot_paths(model: lj.Model, config: HotPathsConfig) -> Iterator[ResultRow]:
    """Yields the milliseconds of each way, and how many times faster than the baseline it is."""
    comparisons = [*decoding(model, config), forwards(model, config)]
    for name, baseline, candidates in tqdm(comparisons, desc="bench", unit="comparison"):
        times = best_times(candidates, config.repeats)
        for candidate, seconds in times.items():
            yield ResultRow(f"{name}: {candidate}", seconds * 1e3, "ms")
            if candidate != baseline:
                ratio = times[baseline] / seconds
                yield ResultRow(f"{name}: {candidate} vs {baseline}", ratio, "x faster")


def decoding(model: lj.Model, config: HotPathsConfig) -> Iterator[Comparison]:
    """Compares windows with equal forwards; and block-wise, both loops, and the backends that are
    installed."""
    # Without the special ids at the vocabulary's ends.
    ids = min(16, model.config.vocab_size // 4), model.config.vocab_size // 2
    prompt = jax.random.randint(jax.random.key(config.seed), (1, config.prompt_length), *ids)
    blockwise = config.sampler.replace(cache="blockwise")
    host = partial(lj.generate, model, prompt, blockwise, loop="host")
    compiled = partial(lj.generate, model, prompt, loop="compiled")
    yield Comparison("decode", "cache=none", {
        f"cache={cache}": partial(compiled, config.sampler.replace(cache=cache))
        for cache in get_args(SamplerConfig.setting_types()["cache"])
    })  # fmt: skip
    loops = {"host loop": host, "compiled loop": partial(compiled, blockwise)}
    yield Comparison("decode", "host loop", loops)
    if find_spec("ai_edge_litert"):
        backends = {"xla backend": host, "litert backend": partial(host, backend="litert")}
        yield Comparison("decode", "xla backend", backends)


def forwards(model: lj.Model, config: HotPathsConfig) -> Comparison:
    """Compares forwards of some rows, against a cache of the canvas, with the whole canvas."""
    length = config.length
    sizes = {config.block_length, 2 * config.block_length, config.gen_length, length}
    candidates = {}
    for size in sorted(size for size in sizes if size <= length):
        positions = length - size + jnp.arange(size, dtype=jnp.int32)
        cached = 0 if size == length else length
        candidates[f"{size} rows"] = forward_of(model, positions, cached)
    return Comparison("forward", f"{length} rows", candidates)


def forward_of(model: lj.Model, positions: Int[Array, " R"], cached: int) -> Callable[[], RowsOut]:
    """Returns a forward of rows at some positions, all of which see so many cached ones."""
    cache = cache_for(model.params, model.config, 1, cached)
    live = jnp.ones((1, len(positions)), bool)
    tokens = jnp.ones_like(positions)[None]
    rows = make_rows(tokens, positions[None], live, jnp.ones((1, cached), bool))
    return partial(_forward, model.params, model.config, rows, cache)


_forward = jax.jit(forward_rows, static_argnums=1)
