"""Prophet (arXiv 2508.19982): once the two best logits are far apart, all is committed."""

import jax.numpy as jnp

import llada_jax as lj


@lj.rule
class Prophet:
    """Follows LLaDA's schedule until the mean gap over the block's masks reaches a threshold that
    depends on the progress, then commits every mask that was scored. (The mean of the published
    Prophet is over a given answer.)
    """

    early: float = 7.5
    middle: float = 5.0
    late: float = 2.5
    needs = frozenset({"top_k", "drafts"})

    def decide(self, seen, state):
        best = seen.top_logits
        left = seen.masked.sum(axis=1).astype(jnp.float32)
        gaps = jnp.where(seen.masked, best[..., 0] - best[..., 1], 0)
        gap = gaps.sum(axis=1) / jnp.maximum(left, 1)
        progress = 1 - left / jnp.maximum(seen.block_masks, 1).astype(jnp.float32)
        bar = jnp.where(progress < 0.33, self.early, self.middle)
        bar = jnp.where(progress < 0.67, bar, self.late)
        priority = jnp.where(seen.masked, seen.confidence, -1)
        rank = jnp.argsort(jnp.argsort(-priority, axis=1, stable=True), axis=1)
        scheduled = rank < seen.quota[:, None]
        sure = (gap >= bar)[:, None]
        return lj.Decision(commit=scheduled | sure, ahead=sure & seen.drafts.masked), state
