"""The masked-diffusion loss of LLaDA (arXiv 2502.09992, equations 3 and 5).

A canvas draws a masking probability t, each of its target tokens is masked with probability t, and
the model predicts the masked ones. Cross-entropy weighted with 1/t bounds the negative
log-likelihood of the target from above, per token once it is divided by the target's length.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from llada_jax.training.data import TrainingBatch

Tokens = Int[Array | np.ndarray, "B L"]


class Corruption(NamedTuple):
    """What the model reads, and what it must predict."""

    tokens: Int[Array, "B L"]
    masked: Bool[Array, "B L"]
    probability: Float[Array, " B"]


class Loss(NamedTuple):
    """Scalars of a batch."""

    loss: Float[Array, ""]  # nats per target token
    accuracy: Float[Array, ""]  # share of masked tokens that the model ranks first


def mask_probabilities(key: Key[Array, ""], batch_size: int, smallest: float) -> Float[Array, " B"]:
    """Draws uniformly on [smallest, 1), one per canvas, spread evenly over the batch.

    The draws share one random offset, so each is uniform and together they cover the range: the
    1/t weights vary less between batches (low-discrepancy sampler of Kingma et al., VDM, 2021).
    """
    offset = jax.random.uniform(key)
    even = (offset + jnp.arange(batch_size) / batch_size) % 1.0
    return smallest + (1 - smallest) * even


def corrupt(key: Key[Array, ""], batch: TrainingBatch, mask_id: int, smallest: float) -> Corruption:
    """Masks each target token with its canvas's probability, and all of what is hidden."""
    probability_key, mask_key = jax.random.split(key)
    probability = mask_probabilities(probability_key, batch.tokens.shape[0], smallest)
    drawn = jax.random.uniform(mask_key, batch.tokens.shape) < probability[:, None]
    masked = drawn & batch.target
    tokens = jnp.where(masked | batch.hidden, mask_id, batch.tokens)
    return Corruption(tokens, masked, probability)


def masked_diffusion_loss(
    logits: Float[Array, "B L V"],
    tokens: Tokens,
    target: Bool[Array | np.ndarray, "B L"],
    corruption: Corruption,
) -> Loss:
    """Averages sum(cross-entropy of masked tokens) / (t * number of target tokens) over canvases.

    Args:
      logits: float32, position i for the token at i.
      tokens: what was there before masking.
      target: tokens that could have been masked; at least one in each canvas.
    """
    masked = corruption.masked
    summed = jnp.where(masked, cross_entropy(logits, tokens), 0).sum(axis=-1)
    per_token = summed / (corruption.probability * target.sum(axis=-1))
    right = ranked_first(logits, tokens) & masked
    return Loss(per_token.mean(), right.sum() / jnp.maximum(masked.sum(), 1))


def cross_entropy(logits: Float[Array, "B L V"], tokens: Tokens) -> Float[Array, "B L"]:
    """Returns the negative log-probability of each token, in nats."""
    return jax.nn.logsumexp(logits, axis=-1) - _pick(logits, tokens)


def ranked_first(logits: Float[Array, "B L V"], tokens: Tokens) -> Bool[Array, "B L"]:
    """Tells where no token has a higher logit."""
    # A comparison with the maximum: XLA's argmax costs more on CPUs than the whole head.
    return _pick(logits, tokens) >= logits.max(axis=-1)


def _pick(logits: Float[Array, "B L V"], tokens: Tokens) -> Float[Array, "B L"]:
    return jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
