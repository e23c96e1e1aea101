"""RCR (arXiv 2508.13148): running confidence decides which tokens become masks again."""

import jax.numpy as jnp

import llada_jax as lj


@lj.rule
class RCR:
    """Commits all masks of the block, then masks all but the schedule's number of tokens again,
    ranked by the confidence at their commit."""

    revises = True
    rescore = "none"

    def init(self, sizes):
        confidence = jnp.zeros((sizes.batch, sizes.block), jnp.float32)
        return lj.RuleState(block=(confidence, jnp.zeros(sizes.batch, jnp.int32)))

    def decide(self, seen, state):
        stored, kept = state.block
        kept = kept + seen.quota
        running = jnp.where(seen.masked, seen.confidence, stored).astype(jnp.float32)
        counted = jnp.where(seen.masked | seen.committed, running, -1)
        rank = jnp.argsort(jnp.argsort(-counted, axis=1, stable=True), axis=1)
        keep = (rank < kept[:, None]) & (counted >= 0)
        decision = lj.Decision(commit=seen.masked & keep, remask=seen.committed & ~keep)
        return decision, state._replace(block=(running, kept))
