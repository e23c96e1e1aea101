"""Saber (arXiv 2510.18165): the threshold is the mean of past commits; falling ones are masked."""

import jax.numpy as jnp

import llada_jax as lj


@lj.rule
class Saber:
    """Commits tokens with more confidence than the mean of past commits, at least `least` of them;
    then masks the tokens again that lost the most confidence since the previous step."""

    least: int = 2
    revises = True
    rescore = "token"

    def init(self, sizes):
        rows = (jnp.ones(sizes.batch, jnp.float32), jnp.zeros(sizes.batch, jnp.float32))
        return lj.RuleState(row=rows, block=jnp.zeros((sizes.batch, sizes.block), jnp.float32))

    def decide(self, seen, state):
        mean, count = state.row
        confidence = seen.confidence.astype(jnp.float32)
        rank = _rank(jnp.where(seen.masked, confidence, -1))
        commit = seen.masked & ((confidence > mean[:, None]) | (rank < self.least))
        n = commit.sum(axis=1)
        total = mean * count + jnp.where(commit, confidence, 0).sum(axis=1)
        count = count + n.astype(jnp.float32)
        row = (jnp.where(n > 0, total / jnp.maximum(count, 1), mean), count)
        fallen = jnp.where(seen.rescored & seen.committed, state.block - confidence, 0)
        most = jnp.maximum(self.least // 2, -(-n // 8))
        most = jnp.minimum(most, jnp.maximum(n - 1, 0))
        remask = (fallen > 0) & (_rank(fallen) < most[:, None])
        known = seen.masked | seen.rescored
        block = jnp.where(known, confidence, state.block)
        return lj.Decision(commit=commit, remask=remask), lj.RuleState(row, block)


def _rank(priority):
    return jnp.argsort(jnp.argsort(-priority, axis=1, stable=True), axis=1)
