"""The suite `hot_paths`: each thing that is done often, against its baseline."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, get_args
from unittest.mock import patch

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int
from tqdm import tqdm

import llada_jax as lj
from experiments.harness.results import ResultRow
from experiments.harness.timers import best_times
from llada_jax.checkpoint import load_params, save_huggingface, sources
from llada_jax.config import SamplerConfig, require_counts
from llada_jax.model.forward import cache_for, forward_rows
from llada_jax.rows import make_rows
from llada_jax.types import RowsOut

BATCH = 8


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
    imports = {
        name: partial(subprocess.run, [sys.executable, "-c", f"import {name}"], check=True)
        for name in ("jax", "llada_jax")
    }
    comparisons = [*decoding(model, config), forwards(model, config)]
    comparisons.append(Comparison("import", "jax", imports))
    with TemporaryDirectory() as folder:
        comparisons.append(loading(model, Path(folder)))
        for name, baseline, candidates in tqdm(comparisons, desc="bench", unit="comparison"):
            times = best_times(candidates, config.repeats)
            for candidate, seconds in times.items():
                yield ResultRow(f"{name}: {candidate}", seconds * 1e3, "ms")
                if candidate != baseline:
                    ratio = times[baseline] / seconds
                    yield ResultRow(f"{name}: {candidate} vs {baseline}", ratio, "x faster")


def decoding(model: lj.Model, config: HotPathsConfig) -> Iterator[Comparison]:
    """Compares windows with equal forwards; and block-wise, many prompts at a time with one after
    the other, both loops, and the backends that are installed."""
    # Without the special ids at the vocabulary's ends.
    ids = min(16, model.config.vocab_size // 4), model.config.vocab_size // 2
    prompt = jax.random.randint(jax.random.key(config.seed), (1, config.prompt_length), *ids)
    blockwise = config.sampler.replace(cache="blockwise")
    prompts = jnp.tile(prompt, (BATCH, 1))
    host = partial(lj.generate, model, prompt, blockwise, loop="host")
    compiled = partial(lj.generate, model, loop="compiled")
    windows = {
        f"cache={cache}": partial(compiled, prompt, config.sampler.replace(cache=cache))
        for cache in get_args(SamplerConfig.setting_types()["cache"])
    }
    batches = {
        "one by one": lambda: [compiled(each[None], blockwise).tokens for each in prompts],
        "one batch": partial(compiled, prompts, blockwise),
    }
    backends = {"xla backend": host}
    if find_spec("ai_edge_litert"):
        backends["litert backend"] = partial(host, backend="litert")
    yield Comparison("decode", "cache=none", windows)
    yield Comparison(f"{BATCH} prompts", "one by one", batches)
    loops = {"host loop": host, "compiled loop": partial(compiled, prompt, blockwise)}
    yield Comparison("decode", "host loop", loops)
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


def loading(model: lj.Model, folder: Path) -> Comparison:
    """Compares loading a bfloat16 checkpoint with doing so unseen, NaN and infinity included."""
    save_huggingface(folder, model.config, model.params)
    load = partial(load_params, folder)

    def unseen() -> Any:
        with patch.object(sources, "all_finite", lambda numbers: True):
            return load()

    return Comparison("load", "unchecked", {"unchecked": unseen, "checked": load})


def forward_of(model: lj.Model, positions: Int[Array, " R"], cached: int) -> Callable[[], RowsOut]:
    """Returns a forward of rows at some positions, all of which see so many cached ones."""
    cache = cache_for(model.params, model.config, 1, cached)
    live = jnp.ones((1, len(positions)), bool)
    tokens = jnp.ones_like(positions)[None]
    rows = make_rows(tokens, positions[None], live, jnp.ones((1, cached), bool))
    return partial(_forward, model.params, model.config, rows, cache)


_forward = jax.jit(forward_rows, static_argnums=1)
