"""LocalLeap (arXiv 2510.07081): tokens near a confident token need less confidence."""

import jax.numpy as jnp

import llada_jax as lj


@lj.rule
class LocalLeap:
    """Commits anchors, and tokens within `radius` of an anchor at a lower threshold."""

    anchor: float = 0.9
    near: float = 0.75
    radius: int = 4

    def decide(self, seen, state):
        anchors = seen.masked & (seen.confidence >= self.anchor)
        distance = jnp.abs(seen.position[:, :, None] - seen.position[:, None, :])
        is_near = (anchors[:, None, :] & (distance <= self.radius)).any(axis=-1)
        commit = anchors | (is_near & (seen.confidence >= self.near))
        return lj.Decision(commit=commit), state
