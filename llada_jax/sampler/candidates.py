"""Candidates: the open positions of a block, and what a step may commit of them.

Candidates are ranked by counting who is ahead of whom (C**2 comparisons). Unlike a sort and a
scatter it fixes the order of ties, and NPU compilers take it.
"""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from llada_jax.config import HOUSE, Parity, Remasking
from llada_jax.types import Scores


@dataclass(frozen=True)
class Candidates:
    """Positions of the current block, what the model says of them, and how they are compared."""

    scores: Scores
    open: Bool[Array, "B C"]  # masked positions, which may be committed
    random: Float[Array, "B C"]  # uniform numbers, where `remasking` ranks by them
    quota: Int[Array, " B"]  # how many tokens LLaDA's schedule commits in this step
    remasking: Remasking = "low_confidence"
    parity: Parity = HOUSE

    @property
    def priority(self) -> Float[Array, "B C"]:
        """What `remasking` ranks candidates by, high to low."""
        return {
            "low_confidence": self.scores.confidence,
            "random": self.random,
            "entropy": -self.scores.entropy,
            "margin": self.scores.margin,
        }[self.remasking]

    def reach(self, bound: Float[Array, ""] | float) -> Bool[Array, "B C"]:
        """Returns the open candidates whose confidence reaches a bound."""
        confidence = self.scores.confidence
        reached = confidence > bound if self.parity.strict_threshold else confidence >= bound
        return reached & self.open


def quota(masks: Int[Array, " B"], step: Int[Array, " B"], steps: int) -> Int[Array, " B"]:
    """Returns `num_transfer_tokens`: `masks` spread evenly over `steps`, the remainder on the first
    ones. LLaDA's linear noise schedule (arXiv 2502.09992, Algorithm 5)."""
    return masks // steps + (step < masks % steps).astype(masks.dtype)


def noise_quota(masks: Int[Array, " B"], step: Int[Array, " B"], steps: int) -> Int[Array, " B"]:
    """Returns how many of the `masks` that are left Dream commits, while its noise level falls
    from 1 to 0.001 in equal steps; the last step commits all."""
    level, lower = (1 - (1 - 1e-3) * ((step + i).astype(jnp.float32) / steps) for i in (0, 1))
    due = (masks.astype(jnp.float32) * (1 - lower / level)).astype(masks.dtype)
    return jnp.where(step < steps - 1, due, masks)


def ranks(priority: Float[Array, "B C"], is_open: Bool[Array, "B C"]) -> Int[Array, "B C"]:
    """Returns how many open candidates come before each one: 0 for the highest priority, of equal
    ones for the first."""
    index = jnp.arange(priority.shape[1], dtype=jnp.int32)
    mine, other = priority[:, :, None], priority[:, None, :]
    earlier = index[None, :] < index[:, None]
    ahead = (other > mine) | ((other == mine) & earlier)
    return (ahead & is_open[:, None, :]).sum(axis=-1, dtype=jnp.int32)
