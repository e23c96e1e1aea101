"""The suite `hot_paths`: several implementations of each frequent operation, compared in one run.

The first implementation of an operation is the baseline of the others.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import llada_jax as lj
from experiments.harness.results import ResultRow
from experiments.harness.timers import spread, times_in_turns
from llada_jax.backend.resources import available_cores
from llada_jax.config import ModelConfig
from llada_jax.model.forward import cache_for, forward_rows, shared_layer
from llada_jax.model.grouped_product import grouped_product
from llada_jax.model.head import ScoreRules, logits_of, score_rows
from llada_jax.model.layers import all_at_once
from llada_jax.model.params import init_params
from llada_jax.revision.tile_multiplier import TileMultiplier
from llada_jax.revision.tiled_forward import pack_params, tiled_denoiser
from llada_jax.rows import make_rows
from llada_jax.sampler.config import SamplerConfig
from llada_jax.types import RowsOut

PROMPT, GENERATED, BLOCK, STEPS = 64, 64, 32, 16
LONG_CANVAS = 2048
REVISED_ROWS = 4
EXPERTS, TAKEN, ROWS, WIDTH = 64, 8, 32, 1024
"""Number of experts, experts per row, rows, and the width of an expert."""


Ways = Mapping[str, Callable[[], Any]]
"""Implementations of one operation by name; the first is the baseline."""


def time_hot_paths(shape: ModelConfig, repeats: int, seed: int) -> Iterator[ResultRow]:
    """Yields the milliseconds of each implementation, and its speed-up over the baseline."""
    model = random_model(shape, seed)
    with TileMultiplier(available_cores()) as multiply:
        paths = {
            **decoding(model),
            "forward": forwards(model),
            "first forward": first_forwards(model),
            "sampling": sampling(model, seed),
            "revision": revision(shape, seed, multiply),
            "experts": experts(seed),
        }
        for path, ways in tqdm(paths.items(), desc="bench", unit="path"):
            times = times_in_turns(ways, repeats)
            for name, seconds in times.items():
                yield from spread(f"{path}/{name}", [1e3 * s for s in seconds], "ms")
            baseline, *others = times
            for name in others:
                ratios = [a / b for a, b in zip(times[baseline], times[name], strict=True)]
                yield from spread(f"{path}/{name} vs {baseline}", ratios, "x as fast")


def random_model(shape: ModelConfig, seed: int) -> lj.Model:
    return lj.Model(shape, init_params(shape, jax.random.key(seed)), None)


def decoding(model: lj.Model) -> Mapping[str, Ways]:
    """Compares windows at an equal number of forwards, both loops, and the installed backends."""
    # Without the special ids at both ends of the vocabulary.
    ids = min(16, model.config.vocab_size // 4), model.config.vocab_size // 2
    prompt = jax.random.randint(jax.random.key(0), (1, PROMPT), *ids)
    sampler = SamplerConfig.from_flat(gen_length=GENERATED, block_length=BLOCK, steps=STEPS)
    blockwise = sampler.replace(cache="blockwise")
    decode = partial(lj.generate, model, prompt)
    loops = {name: partial(decode, blockwise, loop=name) for name in ("host", "compiled")}
    windows = {
        name: partial(decode, sampler.replace(cache=name)) for name in ("none", "blockwise", "dual")
    }
    ways_by_path: dict[str, Ways] = {"loop": loops, "window": windows}
    if find_spec("ai_edge_litert"):
        litert = partial(decode, blockwise, backend="litert", loop="host")
        ways_by_path["backend"] = {"xla": loops["host"], "litert": litert}
    return ways_by_path


def forwards(model: lj.Model) -> Ways:
    """Compares a forward of a block, with a cache of the canvas, with one of the whole canvas."""
    length, block = PROMPT + GENERATED, np.arange(PROMPT, PROMPT + BLOCK)
    canvas = forward_of(model, np.arange(length), 0)
    return {"canvas": canvas, "block": forward_of(model, block, length)}


def first_forwards(model: lj.Model) -> Ways:
    """Compares ways of attention in the first forward of a long canvas, whose cache is empty: with
    all scores in memory, and ours."""
    first = first_forward(model, LONG_CANVAS)
    run = partial(shared_layer, attend_with=all_at_once)
    return {"all scores": partial(first, run), "ours": first}


def first_forward(model: lj.Model, length: int) -> partial[RowsOut]:
    """Returns a forward of a whole canvas, with a cache that no row sees."""
    *inputs, rows, cache = forward_of(model, np.arange(length), length).args
    rows = rows._replace(sees_cache=jnp.zeros_like(rows.sees_cache))
    return partial(_forward, *inputs, rows, cache)


def forward_after(model: lj.Model, cached: int) -> partial[RowsOut]:
    """Returns a forward of a block that follows `cached` positions."""
    return forward_of(model, np.arange(cached, cached + BLOCK), cached)


def sampling(model: lj.Model, seed: int) -> Ways:
    """Compares a float64 softmax over the whole vocabulary, as in Fast-dLLM, with the running
    softmax. Both include the head."""
    hidden = jax.random.normal(jax.random.key(seed), (1, BLOCK, model.config.width))
    hidden = hidden.astype(model.params.embedding.dtype)

    @jax.jit
    def unfused(params: Any, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = logits_of(params, hidden).astype(jnp.bfloat16)
        token = jnp.argmax(logits, axis=-1)
        share = jax.nn.softmax(logits.astype(jnp.float64), axis=-1)
        return token, jnp.take_along_axis(share, token[..., None], axis=-1)[..., 0]

    def in_float64() -> Any:
        with jax.enable_x64(True):
            return unfused(model.params, hidden)

    score = jax.jit(partial(score_rows, rules=ScoreRules()))
    one_pass = partial(score, model.params, hidden, None)
    return {"float64": in_float64, "one pass": one_pass}


def revision(shape: ModelConfig, seed: int, multiply: TileMultiplier) -> Ways:
    """Compares scattered rows through one layer: XLA with float32 weights, and int4 tiles on host
    threads."""
    special = dict.fromkeys(("mask_id", "eos_id", "eot_id", "pad_id"))
    one = shape.replace(n_layers=1, vocab_size=512, **special)
    model = random_model(one, seed)
    length = PROMPT + GENERATED
    in_xla = forward_of(model, np.arange(REVISED_ROWS) * (length // REVISED_ROWS), length)
    *_, rows, cache = in_xla.args
    tiled = tiled_denoiser(one, ScoreRules(), multiply).forward_rows
    on_host = partial(tiled, pack_params(model.params, one), rows, cache)
    return {"float32": in_xla, "tiles": on_host}


def experts(seed: int) -> Ways:
    """Compares products of rows with their experts: XLA's `ragged_dot`, which on a CPU multiplies
    all rows by all experts, a NumPy loop, and `grouped_product`."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((EXPERTS, WIDTH, WIDTH), np.float32)
    chosen = np.concatenate([rng.permutation(EXPERTS)[:TAKEN] for _ in range(ROWS)])
    rows = rng.standard_normal((ROWS * TAKEN, WIDTH), np.float32)
    sizes = np.bincount(chosen, minlength=EXPERTS).astype(np.int32)
    stops = np.cumsum(sizes)

    def numpy_loop() -> list[np.ndarray]:
        groups = zip(stops - sizes, stops, weights, strict=True)
        return [rows[start:stop] @ matrix.T for start, stop, matrix in groups]

    @jax.jit
    def ragged_dot(rows: jax.Array, weights: jax.Array, sizes: jax.Array) -> jax.Array:
        return jax.lax.ragged_dot(rows, weights.swapaxes(1, 2), sizes)

    operands = jnp.asarray(rows), jnp.asarray(weights), jnp.asarray(sizes)
    return {
        "ragged_dot": partial(ragged_dot, *operands),
        "numpy loop": numpy_loop,
        "grouped": partial(jax.jit(grouped_product), *operands),
    }


def forward_of(model: lj.Model, positions: np.ndarray, cached: int) -> partial[RowsOut]:
    """Returns a forward of rows at `positions` that see the first `cached` positions."""
    at = jnp.asarray(positions, jnp.int32)[None]
    every = jnp.ones(at.shape, bool), jnp.ones((1, cached), bool)
    rows = make_rows(jnp.ones_like(at), at, *every)
    cache = cache_for(model.params, model.config, 1, cached)
    return partial(_forward, model.params, model.config, rows, cache)


_forward = jax.jit(forward_rows, static_argnums=(1, 4))
