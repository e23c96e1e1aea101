"""Canvases that a policy read when it chose tokens: all forwards of a run, or one in their place.

A trajectory's score is the sum over its forwards of the log-probabilities of what each committed.
Replaying every forward gives it exactly. d1 (arXiv 2504.12216) reads a single canvas instead.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from llada_jax.config import ModelConfig, SamplerConfig, require
from llada_jax.sampler.canvas import bounds_of
from llada_jax.sampler.record import Event
from llada_jax.sampler.trace import Trace


class Canvases(NamedTuple):
    """N canvases of L positions, and the tokens that are scored on each."""

    tokens: Int[np.ndarray, "N L"]
    live: Bool[np.ndarray, "N L"]
    target: Int[np.ndarray, "N L"]
    weight: Float[np.ndarray, "N L"]
    """1 where the target counts, else 0."""
    trajectory: Int[np.ndarray, " N"]
    """The trace's row that each canvas belongs to."""


def trajectory_canvases(trace: Trace, model: ModelConfig) -> Canvases:
    """Returns the canvas of every forward that committed something, with what it committed.

    Raises ValueError for a run whose forwards read more than a canvas, or that took tokens back.
    """
    settings = trace.settings
    sampler = SamplerConfig.from_dict(settings["sampler"])
    undone = (Event.AHEAD, Event.REPLACE, Event.REMASK)
    require(
        sampler.cache == "none" and not sampler.cfg_scale and not settings["infill"],
        f"cache is {sampler.cache!r}, cfg_scale {sampler.cfg_scale} and infill "
        f"{settings['infill']}; allowed for exact scores: 'none', 0 and False",
    )
    require(
        not np.isin(trace.event_kind, undone).any(),
        "the run revised tokens or drafted; allowed for exact scores: one that only commits",
    )
    require(not model.shift_logits, "shift_logits is True; allowed: False")
    require(model.causal is None, f"causal is {model.causal!r}; allowed: None")
    commit_step = trace.commit_steps()
    commits = trace.event_kind == Event.COMMIT
    steps_and_rows = np.stack([trace.event_step[commits], trace.event_row[commits]])
    step, row = np.unique(steps_and_rows, axis=1)
    live, generated = _regions(trace, model)
    later = generated[row] & ((commit_step[row] >= step[:, None]) | (commit_step[row] < 0))
    return Canvases(
        np.where(later, model.mask_id, trace.tokens[row]).astype(np.int32),
        live[row],
        trace.tokens[row],
        (generated[row] & (commit_step[row] == step[:, None])).astype(np.float32),
        row,
    )


def masked_answers(
    trace: Trace, model: ModelConfig, rng: np.random.Generator, prompt_share: float = 0.15
) -> Canvases:
    """Returns one canvas for each row, as d1 scores an answer: all of it masked, and each token of
    the prompt with a probability. Tokens that no forward committed do not count."""
    require(0 <= prompt_share < 1, f"prompt_share is {prompt_share}; allowed: 0 to below 1")
    live, generated = _regions(trace, model)
    masked = live & (generated | (rng.random(live.shape) < prompt_share))
    tokens = np.where(masked, model.mask_id, trace.tokens).astype(np.int32)
    counts = (trace.commit_steps() >= 0) & generated
    return Canvases(tokens, live, trace.tokens, counts.astype(np.float32), np.arange(len(tokens)))


def _regions(trace: Trace, model: ModelConfig) -> tuple[Bool[np.ndarray, "B L"], ...]:
    """Returns where each row's canvas is, and where what was generated."""
    place = np.arange(trace.tokens.shape[1])
    sampler = SamplerConfig.from_dict(trace.settings["sampler"])
    _, ends = bounds_of(trace.prompt_lengths, sampler, model, infill=False)
    return place < ends[:, None], place >= trace.prompt_lengths[:, None]


def token_batch(canvases: Canvases) -> dict[str, Any]:
    """Returns the names of Tunix's `DiffusionTokenBatch`: inputs, targets at their own positions,
    and what each weighs."""
    return {
        "inputs": {"tokens": canvases.tokens, "live": canvases.live},
        "target_ids": canvases.target,
        "loss_weights": canvases.weight,
    }


def padded(canvases: Canvases, count: int, length: int) -> Canvases:
    """Returns canvases filled up to a multiple of a count, and to a multiple of a length, with what
    weighs nothing: so that few programs are compiled."""
    more, wider = (
        -size % unit for size, unit in zip(canvases.tokens.shape, (count, length), strict=True)
    )

    def wide(leaf: np.ndarray) -> np.ndarray:
        return np.pad(leaf, [(0, more), (0, wider)][: leaf.ndim])

    filled = jax.tree.map(wide, canvases)
    filled.live[len(canvases.live) :, 0] = True
    return filled
