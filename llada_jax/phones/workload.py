"""What a phone is asked to run: forwards, one after the other, and where they come from."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from llada_jax.config import ModelConfig, require

CACHE_STEP = 32
"""Cached positions are rounded up to a multiple of it: fewer shapes to lower."""


class Forward(NamedTuple):
    """One forward of the body, and what goes with it."""

    rows: int
    cache: int
    """Cached positions that the rows read."""
    head_rows: int
    refreshed: int = 0
    """Rows that the CPU runs beside it, to revise what is already visible."""
    rescored: int = 0
    """Tokens that these rows give scores of: not all of them, where a token has two."""


class Workload(NamedTuple):
    """The forwards of one decoding run."""

    forwards: tuple[Forward, ...]
    tokens: int
    prompt_length: int
    source: str
    """Where its dynamics come from; every output that rests on them says so."""

    @property
    def canvas(self) -> int:
        return self.prompt_length + self.tokens

    def alike(self) -> "Workload":
        """Returns as many forwards of fewer kinds: those that differ by the rows that are scored
        alone have as many as they have on average. It is for doubts, which need no more."""
        kinds: dict[Forward, list[int]] = {}
        for each in self.forwards:
            kinds.setdefault(each._replace(head_rows=0), []).append(each.head_rows)
        forwards = (
            kind._replace(head_rows=round(sum(heads) / len(heads)))
            for kind, heads in kinds.items()
            for _ in heads
        )
        return self._replace(forwards=tuple(forwards))


def from_trace(trace: Any, model: ModelConfig, row: int = 0) -> Workload:
    """Returns the forwards of one batch row of an `lj.Trace`, as if it had been decoded alone.

    A trace that was decoded by a model of another shape gives the same forwards, on a phone that
    runs `model`; the source then says so. Raises ValueError for a row that does not exist, a trace
    without forwards, and a canvas that the model cannot hold.
    """
    n_rows = len(trace.prompt_lengths)
    require(0 <= row < n_rows, f"row is {row}; allowed: 0 to {n_rows - 1}")
    live, sampler = trace.live_rows[:, row], trace.settings.get("sampler", {})
    # Without a worker, rows and scores of refreshed tokens are among the forward's.
    rescored = trace.refreshed[:, row] * (sampler.get("refresh") == "worker")
    # A refreshed token runs its own row, and its shadow's where it has one.
    beside = rescored * (2 if sampler.get("rescore") == "shadow" else 1)
    buckets = np.unique(trace.rows)
    forwards = tuple(
        Forward(
            rows=int(buckets[np.searchsorted(buckets, live[step])]),
            cache=rounded(int(trace.cache_length[step, row])),
            head_rows=int(trace.head_rows[step, row]),
            refreshed=int(beside[step]),
            rescored=int(rescored[step]),
        )
        for step in np.flatnonzero(live | beside)
    )
    require(bool(forwards), "the trace has no forwards; allowed: at least one")
    prompt, tokens = int(trace.prompt_lengths[row]), int(trace.filled[row])
    require(
        prompt + tokens <= model.max_length,
        f"the trace's canvas is {prompt + tokens} tokens; allowed: up to {model.max_length} for "
        "this model",
    )
    return Workload(forwards, tokens, prompt, _source(trace.settings.get("model", {}), model))


def _source(found: Mapping[str, Any], model: ModelConfig) -> str:
    """Says whose trace it is, as far as it tells, and whether another model runs it."""
    whose = "a trace"
    if {"family", "n_layers", "width"} <= set(found):
        whose += " of {family}, {n_layers} layers of width {width}".format_map(found)
    names = ("width", "n_layers", "n_heads", "n_kv_heads", "head_dim", "ffn_width", "vocab_size")
    alike = all(found.get(name) == getattr(model, name) for name in names)
    return whose if alike else f"{whose}, run as if by this model"


def rounded(cache: int) -> int:
    """Rounds up to a multiple of `CACHE_STEP`."""
    return -(-cache // CACHE_STEP) * CACHE_STEP


def vanilla(prompt: int, tokens: int) -> Workload:
    """Decodes a token a forward, the whole canvas each time: the paper's CPU and NPU baselines."""
    rows = prompt + tokens
    forwards = (Forward(rows, 0, rows),) * tokens
    return Workload(forwards, tokens, prompt, "one token a forward")


def blockwise(prompt: int, tokens: int, block: int = 32) -> Workload:
    """Decodes one token a forward, the block's rows and a cache of what came before it.

    The first forward runs the prompt too; the first one of each later block runs the block before
    it again, whose last token has no key and value yet.
    """
    forwards = []
    for step in range(tokens):
        start = step // block * block
        fresh = step % block == 0 and step > 0
        settled = 0 if step == 0 else prompt + start - (block if fresh else 0)
        rows = prompt + block if step == 0 else block * (1 + fresh)
        forwards.append(Forward(rows, rounded(settled), block))
    return Workload(tuple(forwards), tokens, prompt, "one token a forward")


def autoregressive(prompt: int, tokens: int) -> Workload:
    """Runs a prefill, then one row for each token."""
    later = (Forward(1, rounded(prompt + i), 1) for i in range(1, tokens))
    return Workload((Forward(prompt, 0, 1), *later), tokens, prompt, "one row a token")
