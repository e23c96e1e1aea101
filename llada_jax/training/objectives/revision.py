"""Objectives that teach to revise: half a batch is masked, half shows tokens that may be wrong.

Here these are random ones: LLaDA2.1's stream of edits, and a control.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from llada_jax.config import require, require_numbers
from llada_jax.training.data import TrainingBatch
from llada_jax.training.loss import corrupt, cross_entropy, masked_diffusion_loss, ranked_first
from llada_jax.training.objectives.objective import Found, Objective, Reader


@dataclass(frozen=True, kw_only=True)
class Revision(Objective):
    """A loss of two halves: of the first one as `masked` has it; of the second one the mean
    cross-entropy of all targets, seen or masked.

    That every target counts, and that half of a batch stays as it was, is of ProSeCo
    (arXiv 2602.11590) and of DMax (arXiv 2604.08302).
    """

    def corrupted(self, reader: Reader, batch: Any, key: Key[Array, ""]) -> Int[Array, "B L"]:
        """Returns what the model reads of the second half's canvases."""
        raise NotImplementedError

    def __call__(self, reader: Reader, batch: Any, key: Key[Array, ""]) -> Found:
        size = len(batch.tokens)
        require(size > 1, f"batch_size is {size}; allowed with {self.name}: 2 or more")
        half = size // 2
        plain = TrainingBatch(*(rows[:half] for rows in batch))
        own = TrainingBatch(*(rows[half:] for rows in batch))
        plain_key, own_key = jax.random.split(key)
        masked = corrupt(plain_key, plain, reader.mask_id, reader.smallest)
        seen = self.corrupted(reader, own, own_key)
        logits = reader.predict(jnp.concatenate([masked.tokens, seen]))
        first = masked_diffusion_loss(logits[:half], plain.tokens, plain.target, masked)
        second, metrics = revision_loss(logits[half:], own, seen, reader.mask_id)
        loss = (half * first.loss + (size - half) * second) / size
        return loss, {"loss": loss, "accuracy": first.accuracy, "revision_loss": second, **metrics}


def revision_loss(
    logits: Float[Array, "B L V"], batch: Any, seen: Int[Array, "B L"], mask_id: int
) -> Found:
    """Averages the cross-entropy of all targets of each canvas, then over canvases, in nats.

    The metrics are shares: of seen targets those that are wrong (`own_errors`), of these those that
    the model would repair, and of right ones those that it would break.
    """
    tokens, target = batch.tokens, batch.target
    counted = jnp.where(target, cross_entropy(logits, tokens), 0)
    shown = target & (seen != mask_id)
    wrong, right = shown & (seen != tokens), shown & (seen == tokens)
    first = ranked_first(logits, tokens)
    return (counted.sum(axis=1) / target.sum(axis=1)).mean(), {
        "own_errors": _share(wrong, shown),
        "repaired": _share(wrong & first, wrong),
        "broken": _share(right & ~first, right),
    }


def _share(some: Bool[Array, "B L"], of: Bool[Array, "B L"]) -> Float[Array, ""]:
    return some.sum() / jnp.maximum(of.sum(), 1)


def some_masked(
    key: Key[Array, ""], tokens: Int[Array, "B L"], where: Bool[Array, "B L"], mask_id: int
) -> Int[Array, "B L"]:
    """Masks up to half of what stands at `where`, in half of the canvases: so that a model learns
    to judge one token by others that may be wrong, as a shadow does."""
    row_key, rate_key, token_key = jax.random.split(key, 3)
    rows = len(tokens)
    rate = 0.5 * jax.random.uniform(rate_key, (rows, 1))
    rate = rate * jax.random.bernoulli(row_key, 0.5, (rows, 1))
    drawn = jax.random.uniform(token_key, tokens.shape) < rate
    return jnp.where(where & drawn, mask_id, tokens)


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
        return _noisy(reader, batch, noise_key, rate)

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
        return some_masked(mask_key, tokens, batch.target, reader.mask_id)

    @property
    def summary(self) -> str:
        return f"half of each batch with {self.rate:.0%} random tokens, all of which count"


def _noisy(
    reader: Reader, batch: Any, key: Key[Array, ""], rate: Float[Array, "..."]
) -> Int[Array, "B L"]:
    """Replaces targets, with the probability `rate`, by any token but [MASK], and masks what is
    hidden."""
    where_key, token_key = jax.random.split(key)
    shape = batch.tokens.shape
    drawn = jax.random.randint(token_key, shape, 0, reader.model.vocab_size - 1)
    drawn += drawn >= reader.mask_id
    noisy = batch.target & (jax.random.uniform(where_key, shape) < rate)
    return jnp.where(batch.hidden, reader.mask_id, jnp.where(noisy, drawn, batch.tokens))
