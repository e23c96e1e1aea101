"""KLASS (arXiv 2511.05664): commit what is confident and has stopped moving."""

import jax
import jax.numpy as jnp

import llada_jax as lj


@lj.rule
class KLASS:
    """Commits tokens above `threshold` whose distribution moved by less than `divergence` (KL,
    nats) in each of the last `history` steps; the schedule's best where there are none.

    A block begins without history. (KLASS keeps that of the whole canvas.)
    """

    threshold: float = 0.9
    divergence: float = 0.01
    history: int = 2
    needs = frozenset({"confidence", "logits"})

    def init(self, sizes):
        shape = (sizes.batch, sizes.block)
        previous = jnp.zeros((*shape, sizes.vocab), jnp.float32)
        return lj.State(block=(previous, jnp.zeros(shape, jnp.int32)))

    def decide(self, seen, state):
        previous, steady = state.block
        p = jax.nn.softmax(seen.logits.astype(jnp.float32), axis=-1)
        moved = (p * (jnp.log(p + 1e-12) - jnp.log(previous + 1e-12))).sum(axis=-1)
        steady = jnp.where(moved < self.divergence, steady + 1, 0)
        ready = seen.masked & (seen.confidence > self.threshold) & (steady >= self.history)
        priority = jnp.where(seen.masked, seen.confidence, -1)
        rank = jnp.argsort(jnp.argsort(-priority, axis=1, stable=True), axis=1)
        due = jnp.maximum(seen.quota, 1)[:, None]
        commit = jnp.where(ready.any(axis=1, keepdims=True), ready, rank < due)
        return lj.Decision(commit=commit), state._replace(block=(p, steady))
