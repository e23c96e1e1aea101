"""The rule of Fast-dLLM: every token that the model is sure of."""

from jaxtyping import Array, Bool

from llada_jax.config import require_numbers
from llada_jax.config.policies import flat_choice
from llada_jax.sampler.candidates import Candidates
from llada_jax.sampler.policy import policy
from llada_jax.sampler.rules.rule import Rule


@policy
class Threshold(Rule):
    """Commits every token whose confidence reaches a threshold.

    Attributes:
      threshold: Commit every token whose confidence reaches it (Fast-dLLM).
    """

    chosen_by = flat_choice("rule", accept="threshold")
    source = "Fast-dLLM, arXiv 2505.22618"

    threshold: float

    def __post_init__(self) -> None:
        require_numbers(self, "threshold", above=0, most=1)

    def accept(self, candidates: Candidates) -> Bool[Array, "B C"]:
        return candidates.reach(self.threshold)
