"""Policy gradients for decoders: reconstructs the canvases of a run, and applies GRPO to them.

A forward pass draws a token for each mask of its block. It commits the tokens whose confidence
reaches a limit and draws the others again in the next pass. So the log-probability of a trajectory
is the sum over its passes of the log-probabilities of the committed tokens, and of every other
mask's log-probability of a token below the limit, which is how a model learns to wait. Replaying
every pass gives it exactly (`trajectory_canvases`); d1 (arXiv 2504.12216) approximates the first
part with a single canvas (`masked_answers`). GRPO (arXiv 2402.03300) normalises rewards within
groups of answers to a prompt, and clips the probability ratio. There is no penalty on the distance
from the initial policy here.
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
from llada_jax.sampler.rules.committing import Quota, Threshold
from llada_jax.sampler.trace import Trace
from llada_jax.sampler.trace_data import bounds_in
from llada_jax.training.loss import cross_entropy

_LEAST_PROBABILITY = 1e-6  # keeps logarithms finite if an update moves all tokens above the limit


class Canvases(NamedTuple):
    """N canvases of L positions, and the tokens to score on each."""

    tokens: Int[np.ndarray, "N L"]
    live: Bool[np.ndarray, "N L"]
    target: Int[np.ndarray, "N L"]
    weight: Float[np.ndarray, "N L"]  # 1 if the target counts, else 0
    waiting: Float[np.ndarray, "N L"]  # 1 if the mask was predicted and not committed, else 0
    limit: Float[np.ndarray, " N"]  # predictions with a lower confidence were not committed
    inverse_temperature: Float[np.ndarray, " N"]  # of the draws; confidences are at temperature 1
    trajectory: Int[np.ndarray, " N"]  # row of the trace that the canvas belongs to


def trajectory_canvases(trace: Trace, model: ModelConfig) -> Canvases:
    """Returns the canvas of every forward pass that committed tokens; these tokens count, and the
    masks of their block that waited.

    Raises ValueError for a run whose rule does not choose by probability alone, with passes that
    read more than one canvas, or with tokens that were revised, because then the sum is not the
    trajectory's log-probability.
    """
    settings = trace.settings
    sampler = SamplerConfig.from_flat(settings["sampler"])
    undone = (Event.AHEAD, Event.REPLACE, Event.REMASK)
    rule, remasking, temperature = sampler.rule, sampler.remasking, sampler.temperature
    require(
        isinstance(rule, Quota | Threshold) and remasking == "low_confidence" and temperature > 0,
        f"accept is {rule.name!r}, remasking {remasking!r} and temperature {temperature}; allowed "
        "for exact scores: 'quota' or 'threshold', 'low_confidence' and above 0",
    )
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
    (step, row), canvas = np.unique(steps_and_rows, axis=1, return_inverse=True)
    # Every pass commits the best prediction, even if it is below the threshold.
    limit = np.full(len(row), getattr(rule, "threshold", np.inf))
    np.minimum.at(limit, canvas, trace.event_confidence[commits])
    live, generated = _regions(trace)
    later = generated[row] & ((commit_step[row] >= step[:, None]) | (commit_step[row] < 0))
    committed = generated[row] & (commit_step[row] == step[:, None])
    first, _ = bounds_in(settings, trace.prompt_lengths)
    start = first[row] + sampler.block_length * trace.block[step, row]
    offset = np.arange(trace.tokens.shape[1]) - start[:, None]
    in_block = live[row] & (offset >= 0) & (offset < sampler.block_length)
    return Canvases(
        np.where(later, model.mask_id, trace.tokens[row]).astype(np.int32),
        live[row],
        trace.tokens[row],
        committed.astype(np.float32),
        (later & in_block & ~committed).astype(np.float32),
        limit.astype(np.float32),
        np.full(len(row), 1 / temperature, np.float32),
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
    weight = ((trace.commit_steps() >= 0) & generated).astype(np.float32)
    none = np.zeros(len(tokens), np.float32)
    rows = np.arange(len(tokens))
    return Canvases(tokens, live, trace.tokens, weight, np.zeros_like(weight), none, none + 1, rows)


def _regions(trace: Trace) -> tuple[Bool[np.ndarray, "B L"], ...]:
    """Marks each row's canvas, and its generated positions."""
    position = np.arange(trace.tokens.shape[1])
    _, ends = bounds_in(trace.settings, trace.prompt_lengths)
    return position < ends[:, None], position >= trace.prompt_lengths[:, None]


def token_batch(canvases: Canvases) -> dict[str, Any]:
    """Returns the fields of Tunix's `DiffusionTokenBatch`: inputs, targets at the same positions,
    and weights. It has no field for masks that waited."""
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
    """Returns the log-probabilities (nats) of the targets that count, and of a draw below the limit
    for masks that waited; else 0. [MASK] is excluded, because a decoder may not choose it."""
    logits = forward(params, model, jnp.asarray(canvases.tokens), jnp.asarray(canvases.live))
    is_mask = jnp.arange(model.vocab_size) == model.mask_id
    allowed = jnp.where(is_mask, jnp.finfo(logits.dtype).min, logits)
    scaled = allowed * canvases.inverse_temperature[:, None, None]
    is_below = jax.nn.softmax(allowed) < canvases.limit[:, None, None]
    below = jnp.where(is_below, jax.nn.softmax(scaled), 0).sum(axis=-1)
    waited = jnp.where(canvases.waiting > 0, jnp.log(jnp.maximum(below, _LEAST_PROBABILITY)), 0)
    return jnp.where(canvases.weight > 0, -cross_entropy(scaled, canvases.target), waited)


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
    """Returns the negative sum of clipped, weighted advantages over the positions of canvases.
    `before` are the scores by the parameters that chose the tokens; None if these are `params`."""
    scores = log_probabilities(params, model, canvases)
    ratio = jnp.exp(scores - (jax.lax.stop_gradient(scores) if before is None else before))
    canvas_advantage = advantage[:, None]
    bounded = jnp.clip(ratio, 1 - clip, 1 + clip) * canvas_advantage
    weight = canvases.weight + canvases.waiting
    return -(weight * jnp.minimum(ratio * canvas_advantage, bounded)).sum()


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
    total = max(canvases.weight.sum(), 1)
    weighted = canvases._replace(weight=canvases.weight / total, waiting=canvases.waiting / total)
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
