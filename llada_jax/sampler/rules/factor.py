"""The second rule of Fast-dLLM: the surer the tokens are, the more of them."""

import jax.numpy as jnp
from jaxtyping import Array, Bool

from llada_jax.config import require_numbers
from llada_jax.config.policies import flat_choice
from llada_jax.sampler.candidates import Candidates
from llada_jax.sampler.policy import policy
from llada_jax.sampler.rules.rule import Rule


@policy
class Factor(Rule):
    """Commits the longest run of best tokens with confidence_n >= 1 - factor / (n + 1), n from 1.

    Fast-dLLM's code also takes the last rank below its bound; this does not.

    Attributes:
      factor: Commit the n best tokens while confidence_n >= 1 - factor / (n + 1) (Fast-dLLM).
    """

    chosen_by = flat_choice("rule", accept="factor")
    source = "Fast-dLLM, arXiv 2505.22618"

    factor: float

    def __post_init__(self) -> None:
        require_numbers(self, "factor", least=0)

    def accept(self, candidates: Candidates) -> Bool[Array, "B C"]:
        confidence = candidates.scores.confidence
        rank = candidates.ranks(confidence)
        bound = 1 - self.factor / (rank + 2).astype(confidence.dtype)
        below = candidates.open & (confidence < bound)
        first_below = jnp.where(below, rank, rank.shape[1]).min(axis=1, keepdims=True)
        return candidates.open & (rank < first_below)
