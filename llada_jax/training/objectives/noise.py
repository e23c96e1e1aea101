"""Random tokens in place of right ones: LLaDA2.1's stream of edits, and a control."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from llada_jax.config import require_numbers
from llada_jax.training.objectives.objective import Reader
from llada_jax.training.objectives.revision import Revision, some_masked


@dataclass(frozen=True, kw_only=True)
class _Noise(Revision):
    rate: float

    def __post_init__(self) -> None:
        require_numbers(self, "rate", above=0, most=1)


@dataclass(frozen=True, kw_only=True)
class Edit(_Noise):
    """LLaDA2.1's two streams, of masks and of edits (its report, §3). The report prints no rates:
    here a canvas of edits draws its own, uniform up to `rate`."""

    name: ClassVar[str] = "edit"

    rate: float = 0.3

    def corrupted(self, reader: Reader, batch: Any, key: Key[Array, ""]) -> Int[Array, "B L"]:
        rate_key, noise_key = jax.random.split(key)
        rate = self.rate * jax.random.uniform(rate_key, (len(batch.tokens), 1))
        return _hidden(reader, batch, _noisy(reader, batch, noise_key, rate))

    @property
    def summary(self) -> str:
        return f"half of each batch with up to {self.rate:.0%} random tokens, all of which count"


@dataclass(frozen=True, kw_only=True)
class Uniform(_Noise):
    """A control for `self_fill`: as many wrong tokens, and as many masks, but drawn at random."""

    name: ClassVar[str] = "uniform"

    rate: float = 0.03

    def corrupted(self, reader: Reader, batch: Any, key: Key[Array, ""]) -> Int[Array, "B L"]:
        noise_key, mask_key = jax.random.split(key)
        tokens = _noisy(reader, batch, noise_key, jnp.float32(self.rate))
        tokens = some_masked(mask_key, tokens, batch.target, reader.mask_id)
        return _hidden(reader, batch, tokens)

    @property
    def summary(self) -> str:
        return f"half of each batch with {self.rate:.0%} random tokens, all of which count"


def _hidden(reader: Reader, batch: Any, tokens: Int[Array, "B L"]) -> Int[Array, "B L"]:
    return jnp.where(batch.hidden, reader.mask_id, tokens)


def _noisy(
    reader: Reader, batch: Any, key: Key[Array, ""], rate: Float[Array, "..."]
) -> Int[Array, "B L"]:
    """Replaces targets, with the probability `rate`, by any token but [MASK]."""
    where_key, token_key = jax.random.split(key)
    shape = batch.tokens.shape
    drawn = jax.random.randint(token_key, shape, 0, reader.model.vocab_size - 1)
    drawn += drawn >= reader.mask_id
    noisy = batch.target & (jax.random.uniform(where_key, shape) < rate)
    return jnp.where(noisy, drawn, batch.tokens)
