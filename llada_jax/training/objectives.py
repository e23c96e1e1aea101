"""Training objectives: what canvases a model reads, and which of its predictions count.

`masked` is LLaDA's objective: masked tokens are predicted. A model trained only on it has never
seen a wrong token on a canvas, so it cannot judge whether a token should be revised. A `Revision`
uses `masked` for half of each batch. The other half shows tokens that may be wrong, and every token
counts, visible or not, so that the model learns to correct. `self_fill` shows the model's own
predictions, which are the errors that its decoder makes; a custom subclass implements `corrupted`.
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

LossAndMetrics = tuple[Float[Array, ""], dict[str, Float[Array, ""]]]
"""A loss, and scalars to log."""
SMALLEST_MASKED, LARGEST_MASKED = 0.3, 0.9
"""Range of the share of masks at the start of `self_fill`, unless all targets are masked."""


class Reader(NamedTuple):
    """Access of an objective to the model in training."""

    model: ModelConfig
    predict: Callable[[Int[Array, "B L"]], Float[Array, "B L V"]]
    """Logits of the batch's canvases, with gradient; called once."""
    infer: Callable[[Int[Array, "N L"], Bool[Array, "N L"]], Float[Array, "N L V"]]
    """Logits of any canvases, given their live positions, without gradient."""
    smallest: float  # smallest masking probability

    @property
    def mask_id(self) -> int:
        assert self.model.mask_id is not None
        return self.model.mask_id


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A loss of a batch; an instance holds the loss's numbers, a subclass is found by `name`."""

    name: ClassVar[str]
    description: ClassVar[str]
    """Half a sentence about the loss for `summary`, with placeholders for the fields."""

    def __init_subclass__(cls) -> None:
        if "name" in cls.__dict__:
            _OBJECTIVES[cls.name] = cls

    @classmethod
    def named(cls, name: str) -> "Objective":
        """Returns the objective with this name, with default numbers."""
        require(name in _OBJECTIVES, f"objective is {name!r}; allowed: {', '.join(_OBJECTIVES)}")
        return _OBJECTIVES[name]()

    def __call__(self, reader: Reader, batch: Any, key: Key[Array, ""]) -> LossAndMetrics:
        """Returns the loss of a `TrainingBatch` in nats per target token, and scalars to log,
        including the loss."""
        raise NotImplementedError

    @property
    def summary(self) -> str:
        """Describes the objective, for a model card."""
        return self.description.format(self)


_OBJECTIVES: dict[str, type[Objective]] = {}


@dataclass(frozen=True, kw_only=True)
class Masked(Objective):
    """Predicts masked tokens only: their cross-entropy, weighted with 1/t
    (`llada_jax.training.loss`)."""

    name = "masked"
    description = "no other term"

    def __call__(self, reader: Reader, batch: Any, key: Key[Array, ""]) -> LossAndMetrics:
        corruption = corrupt(key, batch, reader.mask_id, reader.smallest)
        logits = reader.predict(corruption.tokens)
        result = masked_diffusion_loss(logits, batch.tokens, batch.target, corruption)
        return result.loss, result._asdict()


@dataclass(frozen=True, kw_only=True)
class Revision(Objective):
    """The mean of two losses: `masked` on the first half of the batch, and on the second half the
    mean cross-entropy of all target tokens, visible or masked.

    ProSeCo (arXiv 2602.11590) and DMax (arXiv 2604.08302) also count every target, and keep half of
    the batch for masks only.
    """

    def corrupted(self, reader: Reader, batch: Any, key: Key[Array, ""]) -> Int[Array, "B L"]:
        """Returns the model's input for the canvases of the second half."""
        raise NotImplementedError

    def __call__(self, reader: Reader, batch: Any, key: Key[Array, ""]) -> LossAndMetrics:
        size = len(batch.tokens)
        require(size > 1, f"batch_size is {size}; allowed with {type(self).__name__}: 2 or more")
        half = size // 2
        plain = TrainingBatch(*(rows[:half] for rows in batch))
        revised = TrainingBatch(*(rows[half:] for rows in batch))
        plain_key, revised_key = jax.random.split(key)
        masked = corrupt(plain_key, plain, reader.mask_id, reader.smallest)
        seen = self.corrupted(reader, revised, revised_key)
        # One forward pass for both halves: `predict` may be called once only, because router losses
        # are collected during the call.
        logits = reader.predict(jnp.concatenate([masked.tokens, seen]))
        first = masked_diffusion_loss(logits[:half], plain.tokens, plain.target, masked)
        second, metrics = revision_loss(logits[half:], revised, seen, reader.mask_id)
        # Weighted by rows, so an odd batch counts each canvas equally.
        loss = (half * first.loss + (size - half) * second) / size
        return loss, {"loss": loss, "accuracy": first.accuracy, "revision_loss": second, **metrics}


def revision_loss(
    logits: Float[Array, "B L V"], batch: Any, seen: Int[Array, "B L"], mask_id: int
) -> LossAndMetrics:
    """Averages the cross-entropy of all targets of each canvas, then over canvases, in nats.

    There is no weight 1/t, because all targets count and not a random subset. The metrics are
    shares: of visible targets the wrong ones (`own_errors`), of these the ones that the model would
    repair, and of right ones the share that it would break.
    """
    tokens, target = batch.tokens, batch.target
    counted = jnp.where(target, cross_entropy(logits, tokens), 0)
    shown = target & (seen != mask_id)
    wrong, right = shown & (seen != tokens), shown & (seen == tokens)
    first = ranked_first(logits, tokens)
    # Per canvas first, so that canvases with short answers weigh as much as those with long ones.
    return (counted.sum(axis=1) / target.sum(axis=1)).mean(), {
        "own_errors": _share(wrong, shown),
        "repaired": _share(wrong & first, wrong),
        "broken": _share(right & ~first, right),
    }


def _share(part: Bool[Array, "B L"], total: Bool[Array, "B L"]) -> Float[Array, ""]:
    return part.sum() / jnp.maximum(total.sum(), 1)  # 0 if there is nothing to count


def _mask_some(
    key: Key[Array, ""], tokens: Int[Array, "B L"], where: Bool[Array, "B L"], mask_id: int
) -> Int[Array, "B L"]:
    """Masks up to half of the tokens at `where`, in half of the canvases.

    A shadow is scored with its own token masked and possibly wrong tokens around it; this makes
    such canvases part of training.
    """
    row_key, rate_key, token_key = jax.random.split(key, 3)
    rows = len(tokens)
    rate = 0.5 * jax.random.uniform(rate_key, (rows, 1))
    rate = rate * jax.random.bernoulli(row_key, 0.5, (rows, 1))
    masked = jax.random.uniform(token_key, tokens.shape) < rate
    return jnp.where(where & masked, mask_id, tokens)


@dataclass(frozen=True, kw_only=True)
class SelfFill(Revision):
    """Shows the model its own predictions in place of masks, as a decoder would write them (the
    on-policy training of DMax and ProSeCo).

    Half of these canvases are masked completely, the others partly. Each mask for which the model's
    first choice reaches a confidence is filled. In half of the canvases, the model then fills more
    masks in a second pass on its own output, so that errors build on errors as in decoding. Some
    tokens are masked again at the end (`_mask_some`).

    Attributes:
      least: Lower bound of the confidence, which is drawn uniformly for each canvas.
      most: Upper bound. Both are below a decoder's threshold, because the errors are there.
      all_filled: Share of canvases that are filled at any confidence.
      swapped: Share of canvases in which one token is replaced by a likely wrong one wherever it is
        visible: a consistent error, which cannot be detected by comparing copies.
    """

    name = "self_fill"
    description = (
        "half of each batch shows the model's own predictions in place of masks (confidence from "
        "{0.least:g} to {0.most:g}; {0.swapped:.0%} with one token swapped wherever it occurs), "
        "and all its tokens count"
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
        fill_all = jax.random.bernoulli(next(keys), float(self.all_filled), (rows, 1))
        bound = jnp.where(fill_all, 0, bound)

        def fill(seen: Int[Array, "B L"]) -> tuple[Int[Array, "B L"], _Guesses]:
            guess = guesses(reader.infer(seen, batch.live), batch.tokens, reader.mask_id)
            sure = batch.target & (seen == reader.mask_id) & (guess.confidence >= bound)
            return jnp.where(sure, guess.token, seen), guess

        seen, guess = fill(seen)
        swaps = jax.random.bernoulli(next(keys), float(self.swapped), (rows, 1))
        # Before the second pass, so that it builds on the swapped token.
        seen = jnp.where(swaps, swap_token(next(keys), seen, guess, batch, reader.mask_id), seen)
        again, _ = fill(seen)
        seen = jnp.where(jax.random.bernoulli(next(keys), 0.5, (rows, 1)), again, seen)
        return _mask_some(next(keys), seen, batch.target, reader.mask_id)


class _Guesses(NamedTuple):
    """The model's first choice for each position, and its most likely wrong choice."""

    token: Int[Array, "B L"]
    confidence: Float[Array, "B L"]
    wrong: Int[Array, "B L"]  # the most likely token except the right one
    wrong_log_probability: Float[Array, "B L"]


def guesses(logits: Float[Array, "B L V"], tokens: Int[Array, "B L"], mask_id: int) -> _Guesses:
    """Returns the model's first choices, without [MASK], and the most likely wrong ones."""
    ids = jnp.arange(logits.shape[-1])
    logits = jnp.where(ids == mask_id, -jnp.inf, logits)
    total = jax.nn.logsumexp(logits, axis=-1)
    others = jnp.where(ids == tokens[..., None], -jnp.inf, logits)
    best, next_best = logits.max(axis=-1), others.max(axis=-1)
    # Comparing with the maximum gives the argmax, faster than XLA's argmax on CPUs.
    token, wrong = (
        jnp.where(values >= maximum[..., None], ids, -1).max(axis=-1)
        for values, maximum in ((logits, best), (others, next_best))
    )
    return _Guesses(token, jnp.exp(best - total), wrong, next_best - total)


def swap_token(
    key: Key[Array, ""], seen: Int[Array, "B L"], guess: _Guesses, batch: Any, mask_id: int
) -> Int[Array, "B L"]:
    """Replaces a right token by the model's most likely wrong one, wherever it is visible in the
    canvas. The position that decides both is drawn in proportion to the wrong token's probability,
    so the error is one that the model might make."""
    likely = jnp.where(batch.target, guess.wrong_log_probability, -jnp.inf)
    at = jax.random.categorical(key, likely)[:, None]
    right, wrong = (jnp.take_along_axis(ids, at, axis=1) for ids in (batch.tokens, guess.wrong))
    copies = batch.target & (batch.tokens == right) & (seen != mask_id)
    return jnp.where(copies, wrong, seen)
