"""GRPO (arXiv 2402.03300) on canvases: advantages within groups, and a clipped ratio.

There is no term that holds the policy near its beginning.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from llada_jax.config import ModelConfig
from llada_jax.model.forward import forward
from llada_jax.model.params import ModelParams
from llada_jax.training.loss import cross_entropy
from llada_jax.training.policy.canvases import Canvases, padded


@dataclass(frozen=True, kw_only=True)
class GRPO:
    """How a step is made; sizes bound memory and the number of programs."""

    clip: float = 0.2
    updates: int = 1
    """Of the same answers; the first has a ratio of 1."""
    canvases: int = 32
    """Canvases of a program."""
    length_multiple: int = 32


def log_probabilities(
    params: ModelParams, model: ModelConfig, canvases: Canvases
) -> Float[Array, "N L"]:
    """Returns the log-probabilities (nats) of the targets that count, else 0. [MASK] is no token
    that a decoder may choose."""
    logits = forward(params, model, jnp.asarray(canvases.tokens), jnp.asarray(canvases.live))
    is_mask = jnp.arange(model.vocab_size) == model.mask_id
    allowed = jnp.where(is_mask, jnp.finfo(logits.dtype).min, logits)
    return jnp.where(canvases.weight > 0, -cross_entropy(allowed, canvases.target), 0)


def advantages(rewards: Float[np.ndarray, "P G"]) -> Float[np.ndarray, "P G"]:
    """Returns by how many standard deviations each reward is above the mean of its group; 0 in a
    group whose rewards are equal."""
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
    """Returns the negative sum of clipped, weighted advantages over the tokens of canvases. Without
    the scores before, it is for the parameters that chose the tokens."""
    scores = log_probabilities(params, model, canvases)
    ratio = jnp.exp(scores - (jax.lax.stop_gradient(scores) if before is None else before))
    of_canvas = advantage[:, None]
    bounded = jnp.clip(ratio, 1 - clip, 1 + clip) * of_canvas
    return -(canvases.weight * jnp.minimum(ratio * of_canvas, bounded)).sum()


def grpo_step(
    params: ModelParams,
    moments: Any,
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    canvases: Canvases,
    advantage: Float[np.ndarray, " B"],
    config: GRPO = GRPO(),
) -> tuple[ModelParams, Any]:
    """Returns parameters and the optimizer's moments after updates by a batch of trajectories.

    Args:
      advantage: of each trajectory that canvases name.
    """
    whole = canvases._replace(weight=canvases.weight / max(canvases.weight.sum(), 1))
    kept = advantage[whole.trajectory] != 0
    whole = jax.tree.map(lambda leaf: leaf[kept], whole)
    if not kept.any():
        return params, moments
    filled = padded(whole, config.canvases, config.length_multiple)
    starts = range(0, len(filled.tokens), config.canvases)
    parts = [jax.tree.map(lambda leaf, i=i: leaf[i : i + config.canvases], filled) for i in starts]
    before = [_score(params, model, part) if config.updates > 1 else None for part in parts]
    for _ in range(config.updates):
        total: Any = None
        for part, own in zip(parts, before, strict=True):
            gradient = _gradient(params, model, part, advantage[part.trajectory], own, config.clip)
            total = gradient if total is None else jax.tree.map(jnp.add, total, gradient)
        changes, moments = optimizer.update(total, moments, params)
        params = jax.tree.map(jnp.add, params, changes)
    return params, moments


_score = jax.jit(log_probabilities, static_argnums=1)
_gradient = partial(jax.jit, static_argnums=1)(jax.grad(surrogate))
