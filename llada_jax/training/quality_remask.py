"""The rule that decodes with a quality head: what the head doubts becomes a mask again."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from llada_jax.sampler.rules.own import Decision, Seen, State, rule
from llada_jax.training.quality_head import QualityHead


@rule
class QualityRemask:
    """Commits what reaches a threshold, and masks again what the head holds to be wrong.

    Attributes:
      weight: The head's weight and, last, its bias.
      doubt: A committed token is masked again where it is right with less probability.
    """

    needs: ClassVar[set[str]] = {"confidence", "hidden"}
    revises = True
    rescore = "token"

    weight: tuple[float, ...]
    threshold: float = 0.9
    doubt: float = 0.5

    @classmethod
    def of(cls, head: QualityHead, **numbers: float) -> "QualityRemask":
        """Returns the rule of a head."""
        return cls(weight=(*head.weight.tolist(), head.bias.item()), **numbers)

    def decide(self, seen: Seen, state: State) -> tuple[Decision, State]:
        *weight, bias = self.weight
        quality = jax.nn.sigmoid(seen.hidden.astype(jnp.float32) @ jnp.asarray(weight) + bias)
        wrong = seen.rescored & (quality < self.doubt)
        return Decision(commit=seen.confidence >= self.threshold, remask=wrong), state
