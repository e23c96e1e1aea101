"""The rules that never change a token: LLaDA's schedule, Fast-dLLM's threshold, WeDLM's distance.

`Quota` is LLaDA's own sampler (arXiv 2502.09992): a fixed number of tokens in each step.
`Threshold` is Fast-dLLM's confidence-aware parallel decoding (arXiv 2505.22618). `EntropyDistance`
is WeDLM's (arXiv 2512.22737): tokens that are certain and near the first mask are committed first.
`EntropyBound` is SDAR's strategy `entropy_bounded` (after arXiv 2505.24857).
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool

from llada_jax.config import require_numbers
from llada_jax.sampler.rules.rule import Decision, Observation, Rule, RuleState, ranks, rule


@rule(name="quota")
class Quota(Rule):
    """Commits as many tokens as the linear schedule of `steps` gives the step, best first."""

    may_wait = True  # the schedule may give a step nothing to do

    def decide(self, seen: Observation, state: RuleState) -> tuple[Decision, RuleState]:
        return Decision(commit=ranks(seen.priority, seen.masked) < seen.quota[:, None]), state


@rule(name="threshold")
class Threshold(Rule):
    """Commits every token with a confidence that reaches a threshold.

    Attributes:
      threshold: Commit every token whose confidence reaches it (Fast-dLLM).
    """

    threshold: float

    def __post_init__(self) -> None:
        require_numbers(self, "threshold", above=0, most=1)

    def accept(self, seen: Observation) -> Bool[Array, "B C"]:
        return seen.reaches(self.threshold)


@rule(name="entropy_bound")
class EntropyBound(Rule):
    """Commits the tokens of the smallest entropies while their sum is below a bound, at least one.

    Attributes:
      entropy_bound: `entropy_bound`: the sum of entropies (nats) of the tokens that a step commits
        stays below it.
    """

    needs = frozenset({"entropy"})

    entropy_bound: float = 0.35

    def __post_init__(self) -> None:
        require_numbers(self, "entropy_bound", least=0)

    def decide(self, seen: Observation, state: RuleState) -> tuple[Decision, RuleState]:
        ascending = jnp.sort(jnp.where(seen.masked, seen.entropy, jnp.inf), axis=1)
        below = jnp.cumsum(ascending, axis=1) < self.entropy_bound
        least = jnp.maximum(below.sum(axis=1, keepdims=True), 1)
        return Decision(commit=seen.masked & (ranks(-seen.entropy, seen.masked) < least)), state


@rule(name="entropy_distance")
class EntropyDistance(Rule):
    """Commits tokens with entropy plus a penalty for distance below a bound, or else the token
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
