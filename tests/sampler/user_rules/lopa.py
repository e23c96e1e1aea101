"""LoPA (arXiv 2512.16229) with one branch: the surer of two versions of the block goes on."""

import jax.numpy as jnp

import llada_jax as lj


@lj.rule
class LoPA:
    """Commits by a threshold, and runs, beside the block, a version with one token more: the most
    confident of those left. The version of the better score is the one that is decided on.

    A version's score is its confidence when it was made (the block's own: `threshold`), and the
    mean of the lower half of what it is sure of, `alpha` and 1 - `alpha` of them.
    """

    threshold: float = 0.9
    alpha: float = 0.5
    tries: int = 1  # 0: no branch

    def init(self, sizes):
        at = jnp.full(sizes.batch, -1, jnp.int32)
        return lj.State(block=(at, at, jnp.zeros(sizes.batch, jnp.float32)))

    def decide(self, seen, state):
        at, token, made = (each[:, None] for each in state.block)
        index = jnp.arange(seen.masked.shape[1])
        is_tried = seen.masked & (index == at)
        rest = seen.masked & ~is_tried
        alone = self._score(self.threshold, seen.confidence, seen.masked)
        other = self._score(made[:, 0], seen.tried.confidence, rest)
        wins = (is_tried.any(axis=1) & (other > alone))[:, None]
        p = jnp.where(wins, seen.tried.confidence, seen.confidence).astype(jnp.float32)
        p = jnp.where(wins & is_tried, made, jnp.where(seen.masked, p, -1))
        predicted = jnp.where(wins, seen.tried.predicted, seen.predicted)
        predicted = jnp.where(wins & is_tried, token, predicted)
        commit = seen.masked & ((p >= self.threshold) | (wins & is_tried))
        first = jnp.argmax(p, axis=1)[:, None] == index
        commit = jnp.where(commit.any(axis=1, keepdims=True), commit, first)
        left = jnp.where(seen.masked & ~commit, p, -1)
        best = jnp.argmax(left, axis=1)
        some = (left.max(axis=1) > 0) & (self.tries > 0)
        nth = jnp.arange(len(best)), best
        block = jnp.where(some, best.astype(jnp.int32), -1), predicted[nth], left[nth]
        return lj.Decision(commit=commit, token=predicted, confidence=p), lj.State(block=block)

    def branch(self, tokens, state):
        at, token, _ = state.block
        return jnp.where(jnp.arange(tokens.shape[1]) == at[:, None], token[:, None], tokens)

    def _score(self, made, p, masks):
        ordered = jnp.sort(jnp.where(masks, p, jnp.inf), axis=1)
        half = ((masks.sum(axis=1) + 1) // 2).astype(jnp.float32)
        lower = jnp.arange(masks.shape[1], dtype=jnp.float32) < half[:, None]
        mean = jnp.where(lower, ordered, 0).sum(axis=1) / jnp.maximum(half, 1)
        return self.alpha * made + (1 - self.alpha) * jnp.where(half > 0, mean, 1.0)
