"""The rule of Fast-dLLM (arXiv 2505.22618): every token that the model is confident of."""

from jaxtyping import Array, Bool

from llada_jax.config import require_numbers
from llada_jax.sampler.rules.rule import Observation, Rule, rule


@rule(name="threshold")
class Threshold(Rule):
    """Commits every token whose confidence reaches a threshold.

    Attributes:
      threshold: Commit every token whose confidence reaches it (Fast-dLLM).
    """

    threshold: float

    def __post_init__(self) -> None:
        require_numbers(self, "threshold", above=0, most=1)

    def accept(self, seen: Observation) -> Bool[Array, "B C"]:
        return seen.reaches(self.threshold)
