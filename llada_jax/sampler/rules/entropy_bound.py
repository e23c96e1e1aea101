"""The rule of EB-Sampler: as many tokens as are nearly independent of each other."""

import jax.numpy as jnp
from jaxtyping import Array, Bool

from llada_jax.config import require_numbers
from llada_jax.config.policies import flat_choice
from llada_jax.sampler.candidates import Candidates
from llada_jax.sampler.policy import policy
from llada_jax.sampler.rules.rule import Rule


@policy
class EntropyBound(Rule):
    """Commits in order of entropy, while the sum over all but the largest stays within the bound.

    That sum bounds the mutual information that is ignored when the tokens are committed together.

    Attributes:
      entropy_bound: Commit, in order of entropy, while the sum of the other entropies stays within
        it (nats).
    """

    chosen_by = flat_choice("rule", accept="entropy_bound")
    source = "EB-Sampler, arXiv 2505.24857"
    spread = True
    no_drafts = "accepts the best draft however unsure it is"

    entropy_bound: float

    def __post_init__(self) -> None:
        require_numbers(self, "entropy_bound", least=0)

    def accept(self, candidates: Candidates) -> Bool[Array, "B C"]:
        entropy = candidates.scores.entropy
        rank = candidates.ranks(-entropy)
        before = rank[:, None, :] < rank[:, :, None]  # [B, C, C]: the other is ranked before me
        counted = before & candidates.open[:, None, :]
        sum_before = jnp.where(counted, entropy[:, None, :], 0).sum(-1)
        return candidates.open & (sum_before <= self.entropy_bound)
