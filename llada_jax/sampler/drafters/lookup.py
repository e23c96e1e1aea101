"""Drafts from the text itself: what followed the same words before (prompt look-up decoding)."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from llada_jax.config import require, require_counts
from llada_jax.sampler.drafters.drafter import Drafter, DraftView, drafter
from llada_jax.sampler.state import take
from llada_jax.types import Params


@drafter(name="lookup")
class Lookup(Drafter):
    """Drafts what followed the longest n-gram that ends the text and occurs earlier in the prompt
    or the answer; the last occurrence if there are several. It needs no weights.

    Attributes:
      max_ngram: `lookup`: most tokens of the n-gram; longer ones count as equally long.
      min_ngram: `lookup`: fewest tokens of the n-gram; without such a match nothing is drafted.
    """

    max_ngram: int = 4
    min_ngram: int = 2

    def __post_init__(self) -> None:
        require_counts(self, "max_ngram", "min_ngram")
        require(
            self.min_ngram <= self.max_ngram,
            f"min_ngram is {self.min_ngram}; allowed: up to max_ngram ({self.max_ngram})",
        )

    def params_read(self, params: Params) -> None:
        return None

    def draft(self, params: Params, view: DraftView, count: int) -> Int[Array, "B count"]:
        tokens, anchor = view.tokens, view.anchor[:, None]
        at = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :]
        matched, equal = jnp.zeros_like(tokens), at < anchor
        for back in range(self.max_ngram):
            last = take(tokens, jnp.maximum(anchor - back, 0))
            equal &= (jnp.roll(tokens, back, axis=1) == last) & (at >= back)
            matched += equal.astype(jnp.int32)
        order = jnp.where(matched > 0, matched * tokens.shape[1] + at, -1)
        end = jnp.argmax(order, axis=1)[:, None].astype(jnp.int32)
        found = take(matched, end) >= self.min_ngram
        # Behind the anchor the text is taken to go on as from `end`: a repetition repeats itself.
        period = jnp.maximum(anchor - end, 1)
        follows = end + 1 + jnp.arange(count, dtype=jnp.int32)[None, :] % period
        return jnp.where(found, take(tokens, follows), -1)
