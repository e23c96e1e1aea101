"""The rule of WeDLM (arXiv 2512.22737): tokens that are certain and near are committed first."""

import jax.numpy as jnp

from llada_jax.config import require_numbers
from llada_jax.sampler.rules.rule import Decision, Observation, Rule, RuleState, rule


@rule(name="entropy_distance")
class EntropyDistance(Rule):
    """Commits tokens whose entropy plus a penalty for distance is below a bound, or else the token
    with the smallest sum.

    Attributes:
      max_entropy: `entropy_distance`: commit tokens whose entropy (nats) and distance are below it.
      distance_penalty: `entropy_distance`: penalty for each position of distance to the first mask.
    """

    needs = frozenset({"entropy"})

    max_entropy: float = 0.4
    distance_penalty: float = 0.02

    def __post_init__(self) -> None:
        require_numbers(self, "max_entropy", "distance_penalty", least=0)

    def decide(self, seen: Observation, state: RuleState) -> tuple[Decision, RuleState]:
        first = jnp.argmax(seen.masked, axis=1)[:, None]
        distance = jnp.arange(seen.masked.shape[1])[None, :] - first
        cost = seen.entropy + self.distance_penalty * distance.astype(seen.entropy.dtype)
        near = seen.masked & (cost < self.max_entropy)
        return Decision(commit=seen.with_progress(near, priority=-cost)), state
