"""The suite `hot_paths`: each thing that is done often, against its baseline."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import llada_jax as lj
from experiments.harness.results import ResultRow
from experiments.harness.timers import best_times
from llada_jax.config import ModelConfig, SamplerConfig, require_counts
from llada_jax.evaluation.likelihood import Masked, log_likelihoods
from llada_jax.model.forward import cache_for, forward, forward_rows
from llada_jax.model.head import ScoreRules, logits_of, score_rows
from llada_jax.rows import make_rows
from llada_jax.types import Scores

BATCH = 8
PATTERNS = 32
"""Masks of one likelihood."""


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


def time_hot_paths(model: lj.Model, config: HotPathsConfig) -> Iterator[ResultRow]:
    """Times decoding, batches, loops, forwards, heads, likelihoods and imports."""
    suites = (decoding, batches, loops, backends, forwards, heads, likelihoods, imports)
    for suite in tqdm(suites, desc="bench", unit="suite"):
        yield from suite(model, config)


def against(times: Mapping[str, float], baseline: str, unit_name: str) -> Iterator[ResultRow]:
    """Yields the milliseconds of each, and how many times faster than the baseline it is."""
    for name, seconds in times.items():
        yield ResultRow(f"{unit_name}: {name}", seconds * 1e3, "ms")
        if name != baseline:
            ratio = times[baseline] / seconds
            yield ResultRow(f"{unit_name}: {name} vs {baseline}", ratio, "x faster")


def prompt_of(model: lj.Model, config: HotPathsConfig) -> jax.Array:
    """Returns random ids without the special ones at the vocabulary's ends."""
    key = jax.random.key(config.seed)
    low, high = min(16, model.config.vocab_size // 4), model.config.vocab_size // 2
    return jax.random.randint(key, (1, config.prompt_length), low, high)


def decoding(model: lj.Model, config: HotPathsConfig) -> Iterator[ResultRow]:
    """Times a whole run per window, with equal forwards, against the whole-canvas sampler."""
    prompt = prompt_of(model, config)
    candidates = {
        f"cache={cache}": partial(
            _decode, model, prompt, config.sampler.replace(cache=cache), "compiled"
        )
        for cache in get_args(SamplerConfig.setting_types()["cache"])
    }
    yield from against(best_times(candidates, config.repeats), "cache=none", "decode")


def batches(model: lj.Model, config: HotPathsConfig) -> Iterator[ResultRow]:
    """As `experiments.evaluate` decodes, many prompts at a time, against one after the other."""
    prompts = jnp.tile(prompt_of(model, config), (BATCH, 1))
    sampler = config.sampler.replace(cache="blockwise")
    candidates = {
        "one by one": lambda: [
            _decode(model, prompt[None], sampler, "compiled") for prompt in prompts
        ],
        "one batch": partial(_decode, model, prompts, sampler, "compiled"),
    }
    yield from against(best_times(candidates, config.repeats), "one by one", f"{BATCH} prompts")


def loops(model: lj.Model, config: HotPathsConfig) -> Iterator[ResultRow]:
    """Times the compiled loop against the host loop, block-wise."""
    prompt, sampler = prompt_of(model, config), config.sampler.replace(cache="blockwise")
    candidates = {
        f"{loop} loop": partial(_decode, model, prompt, sampler, loop)
        for loop in ("host", "compiled")
    }
    yield from against(best_times(candidates, config.repeats), "host loop", "decode")


def _decode(
    model: lj.Model, prompt: jax.Array, sampler: SamplerConfig, loop: Any, backend: str = "xla"
) -> Any:
    return lj.generate(model, prompt, sampler, loop=loop, backend=backend).tokens


def backends(model: lj.Model, config: HotPathsConfig) -> Iterator[ResultRow]:
    """Times the host loop with each backend that is installed, block-wise, against XLA."""
    prompt, sampler = prompt_of(model, config), config.sampler.replace(cache="blockwise")
    names = ["xla", *(["litert"] if find_spec("ai_edge_litert") else [])]
    candidates = {
        f"{name} backend": partial(_decode, model, prompt, sampler, "host", name) for name in names
    }
    yield from against(best_times(candidates, config.repeats), "xla backend", "decode")


def forwards(model: lj.Model, config: HotPathsConfig) -> Iterator[ResultRow]:
    """Times a forward of some rows against a cache of the canvas, and of the whole canvas."""
    length = config.length
    sizes = {config.block_length, 2 * config.block_length, config.gen_length, length}
    candidates = {}
    for size in sorted(size for size in sizes if size <= length):
        cache = cache_for(model.params, model.config, 1, 0 if size == length else length)
        positions = length - size + jnp.arange(size, dtype=jnp.int32)[None]
        cached = jnp.ones((1, cache.keys.shape[2]), bool)
        live = jnp.ones(positions.shape, bool)
        rows = make_rows(jnp.ones_like(positions), positions, live, cached)
        candidates[f"{size} rows"] = partial(_forward, model.params, model.config, rows, cache)
    yield from against(best_times(candidates, config.repeats), f"{length} rows", "forward")


_forward = jax.jit(forward_rows, static_argnums=1)


def heads(model: lj.Model, config: HotPathsConfig) -> Iterator[ResultRow]:
    """Times scores of a block: the vocabulary in chunks, against a softmax over all logits."""
    shape = (1, config.block_length, model.config.width)
    hidden = jax.random.normal(jax.random.key(config.seed), shape).astype(
        model.params.embedding.dtype
    )
    streamed = jax.jit(partial(score_rows, noise_keys=None, rules=ScoreRules()))
    materialised = jax.jit(_scores_of_all_logits)
    candidates = {
        "all logits": partial(materialised, model.params, hidden),
        "streamed": partial(streamed, model.params, hidden),
    }
    yield from against(best_times(candidates, config.repeats), "all logits", "scores")


def _scores_of_all_logits(params: Any, hidden: jax.Array) -> Scores:
    logits = logits_of(params, hidden)
    share = jax.nn.softmax(logits, axis=-1)
    token = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    best = jax.lax.top_k(share, 2)[0]
    return Scores(
        token=token,
        confidence=jnp.take_along_axis(share, token[..., None], axis=-1)[..., 0],
        entropy=-jnp.where(share > 0, share * jnp.log(share), 0).sum(-1),
        margin=best[..., 0] - best[..., 1],
    )


def likelihoods(model: lj.Model, config: HotPathsConfig) -> Iterator[ResultRow]:
    """Times LLaDA's bound of a block after the prompt: the vocabulary streamed for masked tokens
    alone, against all logits of the canvases."""
    prompt = prompt_of(model, config)[0]
    pairs = [(prompt.tolist(), prompt[: config.block_length].tolist())]
    streamed = partial(
        log_likelihoods, model.params, model.config, pairs, mc_num=PATTERNS, batch_size=BATCH
    )
    candidates = {
        "all logits": partial(streamed, score=partial(_masked_of_all_logits, model)),
        "masked tokens": streamed,
    }
    yield from against(best_times(candidates, config.repeats), "all logits", "likelihood")


def _masked_of_all_logits(
    model: lj.Model, tokens: np.ndarray, live: np.ndarray, masked: Masked
) -> np.ndarray:
    log_p = _all_log_probabilities(model.params, model.config, tokens, live)
    return np.asarray(log_p)[masked.row, masked.position, masked.token]


@partial(jax.jit, static_argnums=1)
def _all_log_probabilities(
    params: Any, config: ModelConfig, tokens: jax.Array, live: jax.Array
) -> jax.Array:
    return jax.nn.log_softmax(forward(params, config, tokens, live))


def imports(model: lj.Model, config: HotPathsConfig) -> Iterator[ResultRow]:
    """Times `import llada_jax` in a fresh interpreter, against `import jax`."""
    candidates = {
        f"import {name}": partial(
            subprocess.run, [sys.executable, "-c", f"import {name}"], check=True
        )
        for name in ("jax", "llada_jax")
    }
    times = best_times(candidates, config.repeats)
    for name, seconds in times.items():
        yield ResultRow(name, seconds, "s")
    ratio = times["import llada_jax"] / times["import jax"]
    yield ResultRow("import llada_jax vs import jax", ratio, "x the time")
