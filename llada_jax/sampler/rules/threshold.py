"""The rule of Fast-dLLM (arXiv 2505.22618): every token that the model is sure of."""

from jaxtyping import Array, Bool

from llada_jax.config import require_numbers
from llada_jax.sampler.candidates import Candidates
from llada_jax.sampler.rules.rule import Rule


class Threshold(Rule, accept="threshold"):
    """Commits every token whose confidence reaches a threshold.

    Attributes:
      threshold: Commit every token whose confidence reaches it (Fast-dLLM).
    """

    threshold: float

    def __post_init__(self) -> None:
        require_numbers(self, "threshold", above=0, most=1)

    def accept(self, candidates: Candidates) -> Bool[Array, "B C"]:
        return candidates.reach(self.threshold)
