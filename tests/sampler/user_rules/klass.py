"""KLASS (arXiv 2511.05664): commits tokens with a confident and stable distribution."""

import jax.numpy as jnp

import llada_jax as lj


@lj.rule
class KLASS:
    """Commits tokens above `threshold` whose distribution moved by less than `divergence` (KL,
    nats) in each of the last `history` steps, or the schedule's best if there are none.

    A block begins without history. (KLASS keeps a history of the whole canvas.)
    """

    threshold: float = 0.9
    divergence: float = 0.01
    history: int = 2
    needs = frozenset({"divergence"})

    def init(self, sizes):
        return lj.RuleState(block=jnp.zeros((sizes.batch, sizes.block), jnp.int32))

    def decide(self, seen, state):
        moves = seen.divergence >= self.divergence
        steady = jnp.where(moves, 0, state.block + 1)
        ready = seen.masked & (seen.confidence > self.threshold) & (steady >= self.history)
        priority = jnp.where(seen.masked, seen.confidence, -1)
        rank = jnp.argsort(jnp.argsort(-priority, axis=1, stable=True), axis=1)
        due = jnp.maximum(seen.quota, 1)[:, None]
        commit = jnp.where(ready.any(axis=1, keepdims=True), ready, rank < due)
        return lj.Decision(commit=commit), state._replace(block=steady)
