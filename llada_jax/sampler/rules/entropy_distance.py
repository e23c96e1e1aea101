"""The rule of WeDLM (arXiv 2512.22737): what is certain and near is committed first."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from llada_jax.config import require_numbers
from llada_jax.sampler.candidates import Candidates
from llada_jax.sampler.rules.rule import Rule


class EntropyDistance(Rule, accept="entropy_distance"):
    """Commits what has less than a bound of entropy and of distance to the first mask, or else the
    token that has least of both.

    Attributes:
      max_entropy: `entropy_distance`: commit tokens whose entropy (nats) and distance are below it.
      distance_penalty: `entropy_distance`: what a position of distance to the first mask counts.
    """

    spread = True
    no_drafts = "measures distances in the current block"

    max_entropy: float = 0.4
    distance_penalty: float = 0.02

    def __post_init__(self) -> None:
        require_numbers(self, "max_entropy", "distance_penalty", least=0)

    def accept(self, candidates: Candidates) -> Bool[Array, "B C"]:
        return candidates.open & (-self.priority(candidates) < self.max_entropy)

    def priority(self, candidates: Candidates) -> Float[Array, "B C"]:
        first = jnp.argmax(candidates.open, axis=1)[:, None]
        distance = jnp.arange(candidates.open.shape[1]) - first
        entropy = candidates.scores.entropy
        return -(entropy + self.distance_penalty * distance.astype(entropy.dtype))
