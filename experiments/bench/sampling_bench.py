"""The suite `sampling`: from logits to tokens and confidences at LLaDA's vocabulary.

Two samplers take turns, with equal logits in BF16: Fast-dLLM's, a softmax in float64 over the whole
vocabulary, written in JAX; and the running softmax of `score_rows`. Then the same with the head in
front, and how much of a step each takes.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

import llada_jax as lj
from experiments.bench.body import forward_of
from experiments.harness.results import ResultRow
from experiments.harness.timers import best_times
from llada_jax.model.head import logits_of, score_rows
from llada_jax.model.running_scores import absorb_chunk, finish_scores, start_scores
from llada_jax.model.score_rules import ScoreRules

CACHED = 256
CALLS = 4
"""In a turn: the float64 sampler leaves hundreds of megabytes to be taken back."""
CHUNK, LOGITS_CHUNK = 4096, 8192
"""Entries of the vocabulary at a time: with the head in front, and of logits that are there."""
Sampled = tuple[Int[Array, "1 R"], Float[Array, "1 R"]]


class CompiledSampler(NamedTuple):
    """A program, and the bytes it needs beside its inputs and outputs."""

    call: Callable[[], Any]
    temporary: int


def sample_in_float64(logits: Float[Array, "1 R V"]) -> Sampled:
    """Takes the best id, and its share of a softmax in float64; needs `jax.enable_x64`."""
    token = jnp.argmax(logits, axis=-1)
    share = jax.nn.softmax(logits.astype(jnp.float64), axis=-1)
    return token, jnp.take_along_axis(share, token[..., None], axis=-1)[..., 0]


def sample_in_one_pass(logits: Float[Array, "1 R V"], chunk: int) -> Sampled:
    """Does what `score_rows` does, with logits that are there already."""
    rules = ScoreRules(chunk=chunk)

    def absorb(seen, start, size):
        part = jax.lax.dynamic_slice_in_dim(logits, start, size, axis=-1)
        return absorb_chunk(seen, part.astype(jnp.float32), start, None, rules)

    full, rest = divmod(logits.shape[-1], chunk)
    seen = start_scores(logits.shape[:2], jnp.dtype("float32"))
    if full:
        seen = jax.lax.fori_loop(0, full, lambda i, seen: absorb(seen, i * chunk, chunk), seen)
    scores = finish_scores(absorb(seen, full * chunk, rest) if rest else seen)
    return scores.token, scores.confidence


def compiled(function: Callable[..., Any], *arguments: Any, wide: bool = False) -> CompiledSampler:
    """Compiles a function for these arguments, as a user would run it: 64-bit numbers, which slow
    down what does not need them, are allowed only where they are asked for."""
    with jax.enable_x64(wide):
        program = jax.jit(function).lower(*arguments).compile()

    def call() -> Any:
        with jax.enable_x64(wide):
            return program(*arguments)

    memory = program.memory_analysis()
    assert memory is not None
    return CompiledSampler(call, memory.temp_size_in_bytes)


def time_sampling(
    model: lj.Model,
    repeats: int,
    seed: int,
    n_rows: Sequence[int] = (32, 64, 512),
    chunk: int = CHUNK,
) -> Iterator[ResultRow]:
    """Yields all rows of the suite."""
    key = jax.random.key(seed)
    for rows in n_rows:
        logits = 3 * jax.random.normal(key, (1, rows, model.config.vocab_size), jnp.bfloat16)
        one_pass = partial(sample_in_one_pass, chunk=LOGITS_CHUNK)
        samplers = {
            "float64": compiled(sample_in_float64, logits, wide=True),
            "one_pass": compiled(one_pass, logits),
        }
        yield from _compared("score_rows", samplers, rows, repeats)
        theirs, ours = (np.asarray(sampler.call()[0]) for sampler in samplers.values())
        same = float(np.mean(theirs == ours))
        yield ResultRow(f"score_rows/same_tokens/{rows}", same, "of tokens", n=rows)
        yield from _in_a_step(model, samplers, rows, chunk, repeats, key)


def _compared(
    name: str, programs: dict[str, CompiledSampler], rows: int, repeats: int
) -> Iterator[ResultRow]:
    """Times and temporary memory of both, and how many times better the second is."""
    calls = {key: program.call for key, program in programs.items()}
    times = best_times(calls, repeats, CALLS)
    for key, program in programs.items():
        yield ResultRow(f"{name}/{key}/{rows}/ms", times[key] * 1e3, "ms")
        yield ResultRow(f"{name}/{key}/{rows}/temporary_mb", program.temporary / 1e6, "MB")
    before, after = programs
    speedup = times[before] / times[after]
    yield ResultRow(f"{name}/speedup/{rows}", speedup, "x faster")
    ratio = programs[after].temporary / programs[before].temporary
    yield ResultRow(f"{name}/memory_ratio/{rows}", ratio, "of the memory")


def _in_a_step(
    model: lj.Model,
    samplers: dict[str, CompiledSampler],
    rows: int,
    chunk: int,
    repeats: int,
    key: Key[Array, ""],
) -> Iterator[ResultRow]:
    """Times both with the head in front; and on given logits, as shares of the model's step."""
    hidden = jax.random.normal(key, (1, rows, model.config.width))
    hidden = hidden.astype(model.params.embedding.dtype)

    def unfused(params, hidden):
        return sample_in_float64(logits_of(params, hidden).astype(jnp.bfloat16))

    def fused(params, hidden):
        scores = score_rows(params, hidden, None, ScoreRules(chunk=chunk))
        return scores.token, scores.confidence

    both = {
        "float64": compiled(unfused, model.params, hidden, wide=True),
        "one_pass": compiled(fused, model.params, hidden),
    }
    yield from _compared("score_rows/with_head", both, rows, repeats)
    parts = {name: program.call for name, program in both.items()}
    alone = {f"{name} alone": sampler.call for name, sampler in samplers.items()}
    rows_of_body = forward_of(model, CACHED + jnp.arange(rows, dtype=jnp.int32), CACHED + rows)
    times = best_times({**parts, **alone, "body": rows_of_body}, repeats, CALLS)
    for name in both:
        share = times[f"{name} alone"] / (times["body"] + times[name])
        yield ResultRow(f"sampling_share/{name}/{rows}", share, "of a step")
