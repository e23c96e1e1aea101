"""The rule of WINO (arXiv 2507.18578): commit widely, verify, and mask again what fails."""

import jax.numpy as jnp
from jaxtyping import Array, Bool

from llada_jax.config import require, require_numbers
from llada_jax.sampler.rules.rule import (
    Decision,
    Observation,
    Rule,
    RuleState,
    Sizes,
    ranks,
    rule,
)

INITIAL_COMMITS = 30  # commits that WINO assumes before a block's first step


@rule(name="wino")
class Wino(Rule):
    """Commits tokens that reach a low bar; of many, the best: 70 % of the masks, but at least 5 and
    at most 20. Masks them again if their shadows are less confident of them.

    The state of a block is the number of tokens that its last step committed.

    Attributes:
      wino_accept: `wino`: commit tokens whose confidence reaches it.
      wino_verify: `wino`: mask committed tokens again whose probability has fallen below it.
    """

    needs = frozenset({"probability"})
    revises = True
    max_remasks = None  # two steps always make progress

    wino_accept: float = 0.6
    wino_verify: float = 0.9

    def __post_init__(self) -> None:
        require_numbers(self, "wino_accept", "wino_verify", above=0, most=1)
        require(
            self.wino_verify > 0.5,
            f"wino_verify is {self.wino_verify}; allowed: above 0.5, so that a token fails if "
            "another one is preferred",
        )

    def init(self, sizes: Sizes) -> RuleState:
        return RuleState(block=jnp.full(sizes.batch, INITIAL_COMMITS, jnp.int32))

    def accept(self, seen: Observation) -> Bool[Array, "B C"]:
        masks = seen.masked.sum(axis=1, keepdims=True, dtype=jnp.int32)
        most = jnp.clip(masks * 7 // 10, 5, 20)
        rank = ranks(seen.confidence, seen.masked)
        return seen.reaches(self.wino_accept) & (rank < most)

    def decide(self, seen: Observation, state: RuleState) -> tuple[Decision, RuleState]:
        """Masks failed tokens of earlier steps again, if this step commits at least two.

        If as many fail as the step before had committed, or more, one less than those: the least
        probable. So every two steps make progress. The probability is a shadow's, which sees no
        other shadow; WINO's own see each other.
        """
        commit = seen.with_progress(self.accept(seen))
        commits = commit.sum(axis=1, dtype=jnp.int32)
        other = seen.predicted != seen.token
        probability = jnp.where(other, seen.probability, seen.confidence)
        fails = seen.rescored & (other | (probability < self.wino_verify))
        fails &= (commits >= 2)[:, None]
        last = state.block[:, None]
        too_many = fails.sum(axis=1, keepdims=True) >= last
        remask = fails & (~too_many | (ranks(-probability, fails) < last - 1))
        return Decision(commit=commit, remask=remask), state._replace(block=commits)
