"""The forwards of a decoding run, which a phone is to run one after the other.

They come from the trace of a real run, from published statistics (`dynamics`), or from one of three
baselines that need neither.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from llada_jax.config import ModelConfig, require

_CACHE_STEP = 32
"""Cached positions are rounded up to a multiple of this, so that fewer shapes are priced."""


class Forward(NamedTuple):
    """The sizes of one forward."""

    rows: int
    cache: int
    """Cached positions that the rows read."""
    head_rows: int
    """Rows for which the head runs."""
    refreshed: int = 0
    """Rows that the CPU runs at the same time, to revise visible tokens."""
    rescored: int = 0
    """Tokens that these rows rescore: fewer than rows if a token has a shadow row."""


class Workload(NamedTuple):
    """The forwards of one decoding run."""

    forwards: tuple[Forward, ...]
    tokens: int
    """Generated tokens."""
    prompt_length: int
    source: str
    """Where the forwards come from, in words. All results that depend on them repeat it."""

    @property
    def canvas(self) -> int:
        return self.prompt_length + self.tokens

    def with_mean_head_rows(self) -> "Workload":
        """Returns the workload with mean head rows in all forwards of equal rows and cache.

        It has far fewer kinds of forwards, and nearly the same time. Uncertainties are computed
        with it, since they price the workload once for each number of a profile.
        """
        kinds: dict[Forward, list[int]] = {}
        for forward in self.forwards:
            kinds.setdefault(forward._replace(head_rows=0), []).append(forward.head_rows)
        forwards = (
            kind._replace(head_rows=round(sum(head_rows) / len(head_rows)))
            for kind, head_rows in kinds.items()
            for _ in head_rows
        )
        return self._replace(forwards=tuple(forwards))


def from_trace(trace: Any, model: ModelConfig, row: int = 0) -> Workload:
    """Returns the forwards of one batch row of an `lj.Trace`, as if it was decoded alone.

    The trace may be from a model of another shape. Then the workload is that of `model` if it
    decoded in the same way, and `source` contains this. Raises ValueError if the row does not
    exist, if the trace has no forwards, or if the model's canvas is too short.
    """
    n_rows = len(trace.prompt_lengths)
    require(0 <= row < n_rows, f"row is {row}; allowed: 0 to {n_rows - 1}")
    live, sampler = trace.live_rows[:, row], trace.settings.get("sampler", {})
    # Without a worker, refreshed tokens are rows of the forward itself, and counted there.
    rescored = trace.refreshed[:, row] * (sampler.get("refresh") == "worker")
    # A refreshed token is one row, and a second one if it is rescored by its shadow.
    refreshed = rescored * (2 if sampler.get("rescore") == "shadow" else 1)
    buckets = np.unique(trace.rows)
    forwards = tuple(
        Forward(
            rows=int(buckets[np.searchsorted(buckets, live[step])]),
            cache=round_cache(int(trace.cache_length[step, row])),
            head_rows=int(trace.head_rows[step, row]),
            refreshed=int(refreshed[step]),
            rescored=int(rescored[step]),
        )
        for step in np.flatnonzero(live | refreshed)
    )
    require(bool(forwards), "the trace has no forwards; allowed: at least one")
    prompt, tokens = int(trace.prompt_lengths[row]), int(trace.filled[row])
    require(
        prompt + tokens <= model.max_length,
        f"the trace's canvas is {prompt + tokens} tokens; allowed: up to {model.max_length} for "
        "this model",
    )
    return Workload(forwards, tokens, prompt, _source(trace.settings.get("model", {}), model))


def _source(traced: Mapping[str, Any], model: ModelConfig) -> str:
    """Describes the traced model, as far as the trace names it, and whether it is `model`."""
    source = "a trace"
    if {"family", "n_layers", "width"} <= set(traced):
        source += " of {family}, {n_layers} layers of width {width}".format_map(traced)
    names = ("width", "n_layers", "n_heads", "n_kv_heads", "head_dim", "ffn_width", "vocab_size")
    is_same = all(traced.get(name) == getattr(model, name) for name in names)
    return source if is_same else f"{source}, run as if by this model"


def round_cache(cache: int) -> int:
    """Returns the number of cached positions, rounded up to a multiple of `_CACHE_STEP`."""
    return -(-cache // _CACHE_STEP) * _CACHE_STEP


def vanilla(prompt: int, tokens: int) -> Workload:
    """Returns a run without a cache: one token per forward, which computes the whole canvas.

    These are the CPU and NPU baselines of arXiv 2606.13740.
    """
    rows = prompt + tokens
    forwards = (Forward(rows, 0, rows),) * tokens
    return Workload(forwards, tokens, prompt, "one token a forward")


def blockwise(prompt: int, tokens: int, block: int = 32) -> Workload:
    """Returns a run with a cache: one token per forward, which computes the rows of its block.

    The first forward also runs the prompt. The first forward of each later block also runs the
    block before it, whose last token has no cached keys and values yet.
    """
    forwards = []
    for step in range(tokens):
        start = step // block * block
        is_first_of_later_block = step % block == 0 and step > 0
        cached = 0 if step == 0 else prompt + start - block * is_first_of_later_block
        rows = prompt + block if step == 0 else block * (1 + is_first_of_later_block)
        forwards.append(Forward(rows, round_cache(cached), block))
    return Workload(tuple(forwards), tokens, prompt, "one token a forward")


def autoregressive(prompt: int, tokens: int) -> Workload:
    """Returns the run of an autoregressive model: a prefill, then one row per token."""
    later = (Forward(1, round_cache(prompt + i), 1) for i in range(1, tokens))
    return Workload((Forward(prompt, 0, 1), *later), tokens, prompt, "one row a token")
