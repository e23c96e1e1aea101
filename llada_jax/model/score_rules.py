"""What a head's scores leave out, and the noise that tokens are sampled with."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from llada_jax.config import FloatDtype

VOCAB_CHUNK = 4096
VocabId = int | Int[Array, ""]


@dataclass(frozen=True)
class ScoreRules:
    """How logits become predictions and confidences."""

    forbidden: tuple[int, ...] = ()
    """Ids that are never predicted and have no probability."""
    discounted: tuple[int, ...] = ()
    """Ids that may be predicted, but whose probability then counts as 0."""
    temperature: float = 0.0
    confidence_dtype: FloatDtype = "float32"
    noise_dtype: FloatDtype = "float32"
    chunk: int = VOCAB_CHUNK
    spread: bool = True
    """Whether entropy and margin are wanted; where not, a backend may leave them NaN."""
    anywhere: int | None = None
    """The vocabulary's size, where chunks begin anywhere, on a mesh; None: at multiples of
    `chunk`. Noise is keyed by these multiples, wherever a chunk begins."""

    @property
    def plain(self) -> bool:
        """Tells whether `score_greedily` says all that is wanted."""
        greedy = self.temperature == 0 and self.confidence_dtype == "float32"
        return greedy and not self.discounted and not self.spread

    def noise(
        self, keys: Key[Array, "B C"] | None, start: VocabId, logits: Float[Array, "B C chunk"]
    ) -> Float[Array, "B C chunk"] | None:
        """Returns what sampling adds to the logits of a chunk; None: nothing."""
        if keys is None or self.temperature == 0:
            return None
        noise = self._drawn(keys, start, logits.shape[-1])
        return self.temperature * noise.astype(logits.dtype)

    def _drawn(
        self, keys: Key[Array, "B C"], start: VocabId, size: int
    ) -> Float[Array, "B C size"]:
        if self.anywhere is None:
            return gumbel_noise(keys, start, size, self.noise_dtype)
        whole, rest = divmod(self.anywhere, self.chunk)

        def of_chunk(number: VocabId) -> Float[Array, "B C chunk"]:
            noise = gumbel_noise(keys, number * self.chunk, self.chunk, self.noise_dtype)
            last = gumbel_noise(keys, whole * self.chunk, rest, self.noise_dtype)
            last = jnp.pad(last, [(0, 0), (0, 0), (0, self.chunk - rest)])
            return jnp.where(number == whole, last, noise)

        first = start // self.chunk
        both = jnp.concatenate([of_chunk(first), of_chunk(first + 1)], axis=-1)
        return jax.lax.dynamic_slice_in_dim(both, start - first * self.chunk, size, axis=-1)


def gumbel_noise(
    keys: Key[Array, "B C"], start: VocabId, size: int, dtype: FloatDtype
) -> Float[Array, "B C size"]:
    """Draws standard Gumbel noise for the vocabulary ids from `start`, one key a row.

    A float32 uniform number has 2**23 values, too few where the largest of 126,464 draws decides.
    JAX's mode "high" spends twice the bits, so that the upper tail stays exact to 2**-46.
    """
    draw = partial(jax.random.gumbel, shape=(size,), dtype=jnp.dtype(dtype), mode="high")
    return jax.vmap(jax.vmap(lambda key: draw(jax.random.fold_in(key, start))))(keys)
