"""The rule of WINO (arXiv 2507.18578): commit widely, verify, and mask again what fails."""

import jax.numpy as jnp
from jaxtyping import Array, Bool

from llada_jax.config import require, require_numbers
from llada_jax.sampler.candidates import Candidates, ranks
from llada_jax.sampler.canvas import Canvas
from llada_jax.sampler.rules.rule import Rescored, RevisingRule

FIRST_COMMITTED = 30
"""What WINO takes for the commits before a block's first step."""


class Wino(RevisingRule, accept="wino"):
    """Commits tokens that reach a low bar; of many, the best: 70 % of the masks, but at least 5 and
    at most 20. Masks them again where their shadows are less sure of them.

    Attributes:
      wino_accept: `wino`: commit tokens whose confidence reaches it.
      wino_verify: `wino`: mask committed tokens again whose probability has fallen below it.
    """

    wino_accept: float = 0.6
    wino_verify: float = 0.9

    def __post_init__(self) -> None:
        require_numbers(self, "wino_accept", "wino_verify", above=0, most=1)
        require(
            self.wino_verify > 0.5,
            f"wino_verify is {self.wino_verify}; allowed: above 0.5, so that a token fails where "
            "another one is preferred",
        )

    def accept(self, candidates: Candidates) -> Bool[Array, "B C"]:
        masks = candidates.open.sum(axis=1, keepdims=True, dtype=jnp.int32)
        most = jnp.clip(masks * 7 // 10, 5, 20)
        rank = ranks(candidates.scores.confidence, candidates.open)
        return candidates.reach(self.wino_accept) & (rank < most)

    def revise(self, canvas: Canvas, rescored: Rescored) -> Canvas:
        """Tokens of earlier steps whose probability is below `wino_verify` are masked again, where
        this step committed two tokens or more.

        Of as many as the step before had committed, or more, one less than those: the least
        probable. So every two steps make progress. The probability is a shadow's, which sees no
        other shadow; WINO's own see each other.
        """
        other = rescored.other(canvas)
        probability = jnp.where(other, rescored.standing, rescored.scores.confidence)
        fails = rescored.at & (other | (probability < self.wino_verify))
        committed = rescored.fresh.sum(axis=1, keepdims=True)
        failed = fails & (committed >= 2)
        last = jnp.where(canvas.block_step == 0, FIRST_COMMITTED, canvas.accepted)[:, None]
        too_many = failed.sum(axis=1, keepdims=True) >= last
        rank = ranks(-probability, failed)
        masked = failed & (~too_many | (rank < last - 1))
        return canvas.masked_again(masked, rescored.config.mask_id)
