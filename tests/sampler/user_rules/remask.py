"""Two ways to detect a wrong committed token: score its row, or a [MASK] in its place."""

from typing import ClassVar

import jax.numpy as jnp

import llada_jax as lj


@lj.rule
class RemaskByToken:
    """Commits tokens that reach a threshold, and masks tokens again if the model, reading the token
    itself, gives it less than `doubt`."""

    needs: ClassVar[set[str]] = {"current"}
    revises = True
    rescore = "token"

    threshold: float = 0.9
    doubt: float = 0.5

    def decide(self, seen, state):
        doubted = seen.rescored & (seen.current < jnp.log(self.doubt))
        return lj.Decision(commit=seen.confidence >= self.threshold, remask=doubted), state


@lj.rule
class RemaskByShadow:
    """Does the same with the model's scores for a [MASK] at the token's position."""

    needs: ClassVar[set[str]] = {"current"}
    revises = True
    rescore = "shadow"

    threshold: float = 0.9
    doubt: float = 0.5

    def decide(self, seen, state):
        doubted = seen.rescored & (seen.current < jnp.log(self.doubt))
        return lj.Decision(commit=seen.confidence >= self.threshold, remask=doubted), state


@lj.rule
class RemaskOnward:
    """Commits tokens that reach a threshold. If the model, reading a token, gives it less than
    `doubt`, that token and all later ones in the block are masked again: they depend on it."""

    needs: ClassVar[set[str]] = {"current"}
    revises = True
    rescore = "token"

    threshold: float = 0.9
    doubt: float = 0.5

    def decide(self, seen, state):
        doubted = seen.rescored & (seen.current < jnp.log(self.doubt))
        onward = seen.committed & jnp.cumsum(doubted, axis=1, dtype=bool)
        return lj.Decision(commit=seen.confidence >= self.threshold, remask=onward), state
