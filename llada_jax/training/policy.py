"""Policy gradients for decoders: reconstructs the canvases of a run, and applies GRPO to them.

The log-probability of a trajectory is the sum over its forward passes of the log-probabilities of
the tokens that each committed. Replaying every pass gives it exactly (`trajectory_canvases`); d1
(arXiv 2504.12216) approximates it with a single canvas (`masked_answers`). GRPO (arXiv 2402.03300)
normalises rewards within groups of answers to a prompt, and clips the probability ratio. There is
no penalty on the distance from the initial policy here.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import ModelConfig, require
from llada_jax.model.forward import forward
from llada_jax.model.params import ModelParams
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.record import Event
from llada_jax.sampler.trace import Trace
from llada_jax.sampler.trace_data import bounds_in
from llada_jax.training.loss import cross_entropy


class Canvases(NamedTuple):
    """N canvases of L positions, and the tokens to score on each."""

    tokens: Int[np.ndarray, "N L"]
    live: Bool[np.ndarray, "N L"]
    target: Int[np.ndarray, "N L"]
    weight: Float[np.ndarray, "N L"]  # 1 if the target counts, else 0
    trajectory: Int[np.ndarray, " N"]  # row of the trace that the canvas belongs to


def trajectory_canvases(trace: Trace, model: ModelConfig) -> Canvases:
    """Returns the canvas of every forward pass that committed tokens; these tokens count.

    Raises ValueError for a run with passes that read more than one canvas, or with tokens that were
    revised, because then the sum is not the trajectory's log-probability.
    """
    settings = trace.settings
    sampler = SamplerConfig.from_flat(settings["sampler"])
    undone = (Event.AHEAD, Event.REPLACE, Event.REMASK)
    require(
        sampler.window.cache == "none" and not sampler.cfg_scale and not settings["infill"],
        f"cache is {sampler.window.cache!r}, cfg_scale {sampler.cfg_scale} and infill "
        f"{settings['infill']}; allowed for exact scores: 'none', 0 and False",
    )
    require(
        not np.isin(trace.event_kind, undone).any(),
        "the run revised tokens or drafted; allowed for exact scores: one that only commits",
    )
    require(not model.shift_logits, "shift_logits is True; allowed: False")
    require(model.causal is None, f"causal is {model.causal!r}; allowed: None")
    origin = sampler.parity.block_origin
    require(
        model.block_length is None or origin == "canvas",
        f"block_origin is {origin!r}; allowed for exact scores: 'canvas'",
    )
    commit_step = trace.commit_steps()
    commits = trace.event_kind == Event.COMMIT
    steps_and_rows = np.stack([trace.event_step[commits], trace.event_row[commits]])
    step, row = np.unique(steps_and_rows, axis=1)
    live, generated = _regions(trace)
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
    """Returns one canvas for each row, as d1 scores an answer: the answer is masked, and each token
    of the prompt with a probability. Tokens that no forward pass committed do not count."""
    require(0 <= prompt_share < 1, f"prompt_share is {prompt_share}; allowed: 0 to below 1")
    live, generated = _regions(trace)
    masked = live & (generated | (rng.random(live.shape) < prompt_share))
    tokens = np.where(masked, model.mask_id, trace.tokens).astype(np.int32)
    counts = (trace.commit_steps() >= 0) & generated
    return Canvases(tokens, live, trace.tokens, counts.astype(np.float32), np.arange(len(tokens)))


def _regions(trace: Trace) -> tuple[Bool[np.ndarray, "B L"], ...]:
    """Marks each row's canvas, and its generated positions."""
    position = np.arange(trace.tokens.shape[1])
    _, ends = bounds_in(trace.settings, trace.prompt_lengths)
    return position < ends[:, None], position >= trace.prompt_lengths[:, None]


def token_batch(canvases: Canvases) -> dict[str, Any]:
    """Returns the fields of Tunix's `DiffusionTokenBatch`: inputs, targets at the same positions,
    and weights."""
    return {
        "inputs": {"tokens": canvases.tokens, "live": canvases.live},
        "target_ids": canvases.target,
        "loss_weights": canvases.weight,
    }


def pad_canvases(canvases: Canvases, count: int, length: int) -> Canvases:
    """Pads the number of canvases to a multiple of `count` and their length to a multiple of
    `length`, with weight 0, so that few programs are compiled."""
    more, wider = (
        -size % unit for size, unit in zip(canvases.tokens.shape, (count, length), strict=True)
    )
    padded = jax.tree.map(lambda leaf: np.pad(leaf, [(0, more), (0, wider)][: leaf.ndim]), canvases)
    padded.live[len(canvases.live) :, 0] = True  # attention needs one live position
    return padded


@dataclass(frozen=True, kw_only=True)
class GRPO:
    """Settings of a GRPO step; sizes bound memory and the number of programs."""

    clip: float = 0.2
    updates: int = 1  # with the same answers; the ratio is 1 in the first one
    canvases: int = 32  # in one gradient computation
    length_multiple: int = 32


def log_probabilities(
    params: ModelParams, model: ModelConfig, canvases: Canvases
) -> Float[Array, "N L"]:
    """Returns the log-probabilities (nats) of the targets that count, else 0. [MASK] is excluded,
    because a decoder may not choose it."""
    logits = forward(params, model, jnp.asarray(canvases.tokens), jnp.asarray(canvases.live))
    is_mask = jnp.arange(model.vocab_size) == model.mask_id
    allowed = jnp.where(is_mask, jnp.finfo(logits.dtype).min, logits)
    return jnp.where(canvases.weight > 0, -cross_entropy(allowed, canvases.target), 0)


def advantages(rewards: Float[np.ndarray, "P G"]) -> Float[np.ndarray, "P G"]:
    """Returns each reward's distance from the mean of its group in standard deviations; 0 in a
    group with equal rewards."""
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    spread = rewards.std(axis=1, keepdims=True)
    return np.where(spread > 0, centred / np.where(spread > 0, spread, 1), 0).astype(np.float32)


def surrogate(
    params: ModelParams,
    model: ModelConfig,
    canvases: Canvases,
    advantage: Float[Array, " N"],
    before: Float[Array, "N L"] | None,
    clip: float,
) -> Float[Array, ""]:
    """Returns the negative sum of clipped, weighted advantages over the tokens of canvases.
    `before` are the scores by the parameters that chose the tokens; None if these are `params`."""
    scores = log_probabilities(params, model, canvases)
    ratio = jnp.exp(scores - (jax.lax.stop_gradient(scores) if before is None else before))
    canvas_advantage = advantage[:, None]
    bounded = jnp.clip(ratio, 1 - clip, 1 + clip) * canvas_advantage
    return -(canvases.weight * jnp.minimum(ratio * canvas_advantage, bounded)).sum()


def grpo_step(
    params: ModelParams,
    moments: Any,
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    canvases: Canvases,
    advantage: Float[np.ndarray, " B"],
    config: GRPO = GRPO(),
) -> tuple[ModelParams, Any]:
    """Returns parameters and the optimizer's state after updates with a batch of trajectories;
    `advantage` has one value for each. Trajectories with advantage 0 have no gradient and are
    skipped."""
    weighted = canvases._replace(weight=canvases.weight / max(canvases.weight.sum(), 1))
    kept = advantage[weighted.trajectory] != 0
    if not kept.any():
        return params, moments
    weighted = jax.tree.map(lambda leaf: leaf[kept], weighted)
    padded = pad_canvases(weighted, config.canvases, config.length_multiple)
    starts = range(0, len(padded.tokens), config.canvases)
    parts = [jax.tree.map(lambda leaf, i=i: leaf[i : i + config.canvases], padded) for i in starts]
    before = [_score(params, model, part) if config.updates > 1 else None for part in parts]
    for _ in range(config.updates):
        total: Any = None
        for part, scores in zip(parts, before, strict=True):
            part_advantage = advantage[part.trajectory]
            gradient = _gradient(params, model, part, part_advantage, scores, config.clip)
            total = gradient if total is None else jax.tree.map(jnp.add, total, gradient)
        changes, moments = optimizer.update(total, moments, params)
        params = jax.tree.map(jnp.add, params, changes)
    return params, moments


_score = jax.jit(log_probabilities, static_argnums=1)
_gradient = partial(jax.jit, static_argnums=1)(jax.grad(surrogate))
