"""CreditDecoding (arXiv 2510.06133), in its exact sparse form: past favourites carry credit."""

import jax.numpy as jnp

import llada_jax as lj


@lj.rule
class CreditDecoding:
    """Adds alpha * ln(1 + credit) to the logits of tokens that were the argmax before, and commits
    tokens that then reach `threshold`. Only former argmax tokens have credit, so the state is a
    list of (token, credit) pairs, and all other tokens enter through one log-sum-exp."""

    threshold: float = 0.9
    alpha: float = 0.7
    gamma: float = 0.2
    beta: float = 0.8
    needs = frozenset({"log_sum_exp", "listed"})

    def init(self, sizes):
        shape = (sizes.batch, sizes.block, sizes.block)  # at most one new token per step
        return lj.RuleState(block=(jnp.full(shape, -1, jnp.int32), jnp.zeros(shape, jnp.float32)))

    def ask(self, state):
        return lj.Ask(listed=state.block[0])

    def decide(self, seen, state):
        tokens, credit = state.block
        total, p = seen.log_sum_exp, seen.confidence
        same = tokens == seen.predicted[..., None]
        free = (tokens < 0) & (jnp.cumsum(tokens < 0, axis=-1) == 1)
        slot = jnp.where(same.any(axis=-1, keepdims=True), same, free) & seen.masked[..., None]
        tokens = jnp.where(slot, seen.predicted[..., None], tokens)
        credit = credit * self.beta + jnp.where(slot, p[..., None] ** self.gamma, 0)

        own = jnp.where(slot, (jnp.log(p) + total)[..., None], seen.listed)
        fused = jnp.where(tokens >= 0, own + self.alpha * jnp.log1p(credit), -jnp.inf)
        more = jnp.where(tokens >= 0, jnp.exp(own - total[..., None]), 0)
        weight = 1 + (more * ((1 + credit) ** self.alpha - 1)).sum(axis=-1)
        top = fused.max(axis=-1)
        chosen = jnp.where(fused == top[..., None], tokens, jnp.iinfo(jnp.int32).max).min(axis=-1)
        confidence = jnp.where(seen.masked, jnp.exp(top - total) / weight, 0)
        token = jnp.where(seen.masked, chosen, -1)
        commit = confidence >= self.threshold
        decision = lj.Decision(commit=commit, token=token, confidence=confidence)
        return decision, state._replace(block=(tokens, credit))
