"""The model's own predictions, right or wrong, as what it must see through."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from llada_jax.config import require, require_numbers
from llada_jax.training.objectives.objective import Reader
from llada_jax.training.objectives.revision import Revision, some_masked

SMALLEST_MASKED, LARGEST_MASKED = 0.3, 0.9
"""Share of masks at first, where a canvas is not masked whole."""


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

    name: ClassVar[str] = "self_fill"

    least: float = 0.35
    most: float = 0.75
    all_filled: float = 0.25
    swapped: float = 0.25

    def __post_init__(self) -> None:
        require_numbers(self, "least", "most", "all_filled", "swapped", least=0, most=1)
        most = f"up to most ({self.most})"
        require(self.least <= self.most, f"least is {self.least}; allowed: {most}")

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

    @property
    def summary(self) -> str:
        return (
            "half of each batch with what the model itself puts in place of masks (confidence from "
            f"{self.least:g} to {self.most:g}; {self.swapped:.0%} with one token swapped wherever "
            "it stands), where all tokens count"
        )


class Guesses(NamedTuple):
    """What a model would write, and its best wrong idea."""

    token: Int[Array, "B L"]
    confidence: Float[Array, "B L"]
    wrong: Int[Array, "B L"]
    """The likeliest token but the right one."""
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
