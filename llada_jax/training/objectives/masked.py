"""LLaDA's objective: masked tokens alone are predicted, and alone count."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
from jaxtyping import Array, Key

from llada_jax.training.loss import corrupt, masked_diffusion_loss
from llada_jax.training.objectives.objective import Metrics, Objective, Reader


@dataclass(frozen=True, kw_only=True)
class Masked(Objective):
    """Cross-entropy of masked tokens, weighted 1/t (`llada_jax.training.loss`)."""

    name: ClassVar[str] = "masked"

    def __call__(
        self, reader: Reader, batch: Any, key: Key[Array, ""]
    ) -> tuple[jax.Array, Metrics]:
        corruption = corrupt(key, batch, reader.mask_id, reader.smallest)
        logits = reader.predict(corruption.tokens)
        result = masked_diffusion_loss(logits, batch.tokens, batch.target, corruption)
        return result.loss, result._asdict()

    @property
    def summary(self) -> str:
        return "no other term"
