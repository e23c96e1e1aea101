"""What an objective is, how it reads the model that is trained, and LLaDA's own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Array, Bool, Float, Int, Key

from llada_jax.config import ModelConfig, require
from llada_jax.training.loss import corrupt, masked_diffusion_loss

Found = tuple[Float[Array, ""], dict[str, Float[Array, ""]]]
"""A loss, and scalars to log."""


class Reader(NamedTuple):
    """A model in training, as an objective reads it."""

    model: ModelConfig
    predict: Callable[[Int[Array, "B L"]], Float[Array, "B L V"]]
    """Logits of the batch's canvases, of which the gradient is taken; called once."""
    look: Callable[[Int[Array, "N L"], Bool[Array, "N L"]], Float[Array, "N L V"]]
    """Logits of canvases and their live positions, without gradient."""
    smallest: float
    """Masking probability."""

    @property
    def mask_id(self) -> int:
        assert self.model.mask_id is not None
        return self.model.mask_id


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A loss of a batch; a value with its own numbers, found by `name`."""

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "name" in cls.__dict__:
            OBJECTIVES[cls.name] = cls

    @classmethod
    def named(cls, name: str) -> "Objective":
        """Returns the objective of a name, with its default numbers."""
        require(name in OBJECTIVES, f"objective is {name!r}; allowed: {', '.join(OBJECTIVES)}")
        return OBJECTIVES[name]()

    def __call__(self, reader: Reader, batch: Any, key: Key[Array, ""]) -> Found:
        """Returns the loss of a `TrainingBatch` in nats per target token, and scalars to log, the
        loss among them."""
        raise NotImplementedError

    @property
    def summary(self) -> str:
        """Says in half a sentence what counts, for a model's card."""
        raise NotImplementedError


OBJECTIVES: dict[str, type[Objective]] = {}
"""By name."""


@dataclass(frozen=True, kw_only=True)
class Masked(Objective):
    """Masked tokens alone are predicted, and alone count: their cross-entropy, weighted 1/t
    (`llada_jax.training.loss`)."""

    name: ClassVar[str] = "masked"

    def __call__(self, reader: Reader, batch: Any, key: Key[Array, ""]) -> Found:
        corruption = corrupt(key, batch, reader.mask_id, reader.smallest)
        logits = reader.predict(corruption.tokens)
        result = masked_diffusion_loss(logits, batch.tokens, batch.target, corruption)
        return result.loss, result._asdict()

    @property
    def summary(self) -> str:
        return "no other term"
