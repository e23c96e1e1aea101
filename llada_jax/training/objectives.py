"""What a training asks of a model: values, each of which corrupts canvases and says what counts.

`masked` teaches to fill masks. A `Revision` keeps that in half of each batch. In the other half it
shows tokens that may be wrong and counts every token, so that the model learns what to revise:
`self_fill` shows the model's own predictions, a custom subclass whatever its `corrupted` returns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from llada_jax.config import ModelConfig, require, require_numbers
from llada_jax.training.data import TrainingBatch
from llada_jax.training.loss import corrupt, cross_entropy, masked_diffusion_loss, ranked_first

Found = tuple[Float[Array, ""], dict[str, Float[Array, ""]]]
"""A loss, and scalars to log."""
SMALLEST_MASKED, LARGEST_MASKED = 0.3, 0.9
"""Share of masks that `self_fill` begins with, where a canvas is not masked whole."""


class Reader(NamedTuple):
    """A model in training, as an objective reads it."""

    model: ModelConfig
    predict: Callable[[Int[Array, "B L"]], Float[Array, "B L V"]]
    """Logits of the batch's canvases, of which the gradient is taken; called once."""
    look: Callable[[Int[Array, "N L"], Bool[Array, "N L"]], Float[Array, "N L V"]]
    """Logits of canvases and their live positions, without gradient."""
    smallest: float  # masking probability

    @property
    def mask_id(self) -> int:
        assert self.model.mask_id is not None
        return self.model.mask_id


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A loss of a batch; a value with its own numbers, found by `name`."""

    name: ClassVar[str]
    told: ClassVar[str]
    """What counts, in half a sentence that `summary` puts its numbers in."""

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
        """Says what counts, for a model's card."""
        return self.told.format(self)


OBJECTIVES: dict[str, type[Objective]] = {}


@dataclass(frozen=True, kw_only=True)
class Masked(Objective):
    """Masked tokens alone are predicted, and alone count: their cross-entropy, weighted 1/t
    (`llada_jax.training.loss`)."""

    name = "masked"
    told = "no other term"

    def __call__(self, reader: Reader, batch: Any, key: Key[Array, ""]) -> Found:
        corruption = corrupt(key, batch, reader.mask_id, reader.smallest)
        logits = reader.predict(corruption.tokens)
        result = masked_diffusion_loss(logits, batch.tokens, batch.target, corruption)
        return result.loss, result._asdict()


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
        require(size > 1, f"batch_size is {size}; allowed with {type(self).__name__}: 2 or more")
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
class SelfFill(Revision):
    """Masks that the model has filled itself, as a decoder does (DMax's and ProSeCo's on-policy
    training).

    Half of these canvases are masked whole. Where the model's first choice reaches a confidence, it
    is written; half of the canvases are then read and filled once more, on top of what was written.
    Some of what is shown is masked again.

    Attributes:
      least: the lowest confidence that is drawn, uniformly, for a canvas.
      most: the highest one. Both lie below a decoder's threshold, where errors are.
      all_filled: share of canvases that are filled whatever the confidence.
      swapped: share of canvases where one token that the model nearly took for another gives way to
        it, in all places where it is shown: an error that agrees with itself.
    """

    name = "self_fill"
    told = (
        "half of each batch with what the model itself puts in place of masks (confidence from "
        "{0.least:g} to {0.most:g}; {0.swapped:.0%} with one token swapped wherever it stands), "
        "where all tokens count"
    )
    least: float = 0.35
    most: float = 0.75
    all_filled: float = 0.25
    swapped: float = 0.25

    def __post_init__(self) -> None:
        require_numbers(self, "least", "most", "all_filled", "swapped", least=0, most=1)
        low, high = self.least, self.most
        require(low <= high, f"least is {low}; allowed: up to most ({high})")

    def corrupted(self, reader: Reader, batch: Any, key: Key[Array, ""]) -> Int[Array, "B L"]:
        keys = iter(jax.random.split(key, 7))
        rows = len(batch.tokens)
        whole_key, share_key, token_key = jax.random.split(next(keys), 3)
        share = jax.random.uniform(share_key, (rows, 1), None, SMALLEST_MASKED, LARGEST_MASKED)
        share = jnp.where(jax.random.bernoulli(whole_key, 0.5, (rows, 1)), 1, share)
        masked = batch.target & (jax.random.uniform(token_key, batch.target.shape) < share)
        seen = jnp.where(masked | batch.hidden, reader.mask_id, batch.tokens)
        bound = jax.random.uniform(next(keys), (rows, 1), minval=self.least, maxval=self.most)
        everything = jax.random.bernoulli(next(keys), float(self.all_filled), (rows, 1))
        bound = jnp.where(everything, 0, bound)

        def filled(seen: Int[Array, "B L"]) -> tuple[Int[Array, "B L"], Guesses]:
            guess = guesses(reader.look(seen, batch.live), batch.tokens, reader.mask_id)
            sure = batch.target & (seen == reader.mask_id) & (guess.confidence >= bound)
            return jnp.where(sure, guess.token, seen), guess

        seen, guess = filled(seen)
        swaps = jax.random.bernoulli(next(keys), float(self.swapped), (rows, 1))
        seen = jnp.where(swaps, swapped(next(keys), seen, guess, batch, reader.mask_id), seen)
        again, _ = filled(seen)
        seen = jnp.where(jax.random.bernoulli(next(keys), 0.5, (rows, 1)), again, seen)
        return some_masked(next(keys), seen, batch.target, reader.mask_id)


class Guesses(NamedTuple):
    """What a model would write, and its best wrong idea."""

    token: Int[Array, "B L"]
    confidence: Float[Array, "B L"]
    wrong: Int[Array, "B L"]  # the likeliest token but the right one
    wrong_log_probability: Float[Array, "B L"]


def guesses(logits: Float[Array, "B L V"], tokens: Int[Array, "B L"], mask_id: int) -> Guesses:
    """Returns the model's first choices, [MASK] left out, and the likeliest wrong ones."""
    places = jnp.arange(logits.shape[-1])
    logits = jnp.where(places == mask_id, -jnp.inf, logits)
    total = jax.nn.logsumexp(logits, axis=-1)
    others = jnp.where(places == tokens[..., None], -jnp.inf, logits)
    best, next_best = logits.max(axis=-1), others.max(axis=-1)
    # The place of a maximum, which on CPUs is faster so than by XLA's argmax.
    token, wrong = (
        jnp.where(each >= most[..., None], places, -1).max(axis=-1)
        for each, most in ((logits, best), (others, next_best))
    )
    return Guesses(token, jnp.exp(best - total), wrong, next_best - total)


def swapped(
    key: Key[Array, ""], seen: Int[Array, "B L"], guess: Guesses, batch: Any, mask_id: int
) -> Int[Array, "B L"]:
    """Puts a wrong token wherever a right one is shown: one that the model gives some probability,
    in proportion to it."""
    likely = jnp.where(batch.target, guess.wrong_log_probability, -jnp.inf)
    at = jax.random.categorical(key, likely)[:, None]
    right, wrong = (jnp.take_along_axis(each, at, axis=1) for each in (batch.tokens, guess.wrong))
    copies = batch.target & (batch.tokens == right) & (seen != mask_id)
    return jnp.where(copies, wrong, seen)
