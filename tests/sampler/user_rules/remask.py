"""Two ways to see an error that was committed: the token's own row, or a [MASK] in its place."""

from typing import ClassVar

import jax.numpy as jnp

import llada_jax as lj


@lj.rule
class RemaskByToken:
    """Commits what reaches a threshold, and masks again what the model gives less than `doubt`
    when it reads the token itself."""

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
    """Does the same with what the model says of a [MASK] at the token's position."""

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
    """Commits what reaches a threshold. Where the model, reading a token, gives it less than
    `doubt`, that token and all behind it in the block are masked again: they were built on it."""

    needs: ClassVar[set[str]] = {"current"}
    revises = True
    rescore = "token"

    threshold: float = 0.9
    doubt: float = 0.5

    def decide(self, seen, state):
        doubted = seen.rescored & (seen.current < jnp.log(self.doubt))
        onward = seen.committed & jnp.cumsum(doubted, axis=1, dtype=bool)
        return lj.Decision(commit=seen.confidence >= self.threshold, remask=onward), state
