"""The masked-diffusion loss of LLaDA (arXiv 2502.09992, equations 3 and 5), and routers' losses.

A masking probability t is drawn for each canvas, each of its target tokens is masked with
probability t, and the model predicts the masked ones. Their cross-entropy weighted with 1/t bounds
the target's negative log-likelihood from above; divided by the target's length it is per token. Two
more losses keep the loads of a mixture's experts even and its routers' logits small.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from llada_jax.config import ModelConfig, MoEConfig
from llada_jax.model.forward import feed_forward_half
from llada_jax.model.moe import route, router_logits, router_scores
from llada_jax.model.params import Experts, FeedForward
from llada_jax.training.data import TrainingBatch

Tokens = Int[Array | np.ndarray, "B L"]


class Corruption(NamedTuple):
    """Masked canvases: the model's input, the masks to predict, and their probability."""

    tokens: Int[Array, "B L"]
    masked: Bool[Array, "B L"]
    probability: Float[Array, " B"]


class Loss(NamedTuple):
    """Scalars of a batch."""

    loss: Float[Array, ""]  # nats per target token
    accuracy: Float[Array, ""]  # share of masked tokens that are the model's first choice


def mask_probabilities(key: Key[Array, ""], batch_size: int, smallest: float) -> Float[Array, " B"]:
    """Draws uniformly on [smallest, 1), one per canvas, spread evenly over the batch.

    The draws share one random offset, so each is uniform and together they cover the range: the
    1/t weights vary less between batches (low-discrepancy sampler of Kingma et al., VDM, 2021).
    """
    offset = jax.random.uniform(key)
    even = (offset + jnp.arange(batch_size) / batch_size) % 1.0
    return smallest + (1 - smallest) * even


def corrupt(key: Key[Array, ""], batch: TrainingBatch, mask_id: int, smallest: float) -> Corruption:
    """Masks target tokens with their canvas's probability, and all hidden tokens."""
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
    Logits are float32, for the token at the same position; each canvas has a target."""
    masked = corruption.masked
    summed = jnp.where(masked, cross_entropy(logits, tokens), 0).sum(axis=-1)
    per_token = summed / (corruption.probability * target.sum(axis=-1))
    right = ranked_first(logits, tokens) & masked
    return Loss(per_token.mean(), right.sum() / jnp.maximum(masked.sum(), 1))


def cross_entropy(logits: Float[Array, "B L V"], tokens: Tokens) -> Float[Array, "B L"]:
    """Returns the negative log-probability of each token, in nats."""
    return jax.nn.logsumexp(logits, axis=-1) - _pick(logits, tokens)


def ranked_first(logits: Float[Array, "B L V"], tokens: Tokens) -> Bool[Array, "B L"]:
    """Marks tokens with the highest logit of their position."""
    # A comparison with the maximum: XLA's argmax costs more on CPUs than the whole head.
    return _pick(logits, tokens) >= logits.max(axis=-1)


def _pick(logits: Float[Array, "B L V"], tokens: Tokens) -> Float[Array, "B L"]:
    return jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]


class RouterLoss(NamedTuple):
    """Scalars of one layer, or means over layers."""

    balance: Float[Array, ""]  # 1 for even loads, n_experts if one expert gets all tokens
    z: Float[Array, ""]


class RouterLosses:
    """A feed-forward function for `run_layer` that collects each router's losses on the way."""

    def __init__(self, live: Bool[Array, "B L"]) -> None:
        self._live = live.reshape(-1)
        self._layer_losses: list[RouterLoss] = []

    def __call__(
        self, x: Float[Array, "B L D"], weights: FeedForward | Experts, config: ModelConfig
    ) -> Float[Array, "B L D"]:
        if isinstance(weights, Experts):
            assert config.moe is not None
            flat = x.reshape(-1, x.shape[-1])
            self._layer_losses.append(router_loss(flat, weights, config.moe, self._live))
        return feed_forward_half(x, weights, config)

    def mean(self) -> RouterLoss:
        return jax.tree.map(lambda *losses: jnp.stack(losses).mean(), *self._layer_losses)


def router_loss(
    x: Float[Array, "T D"], experts: Experts, config: MoEConfig, live: Bool[Array, " T"]
) -> RouterLoss:
    """Returns two losses, averaged over the live rows.

    `balance` is E sum_e (share of choices) (share of scores) of Switch Transformers (arXiv
    2101.03961, equation 4), `z` the squared log of the logits' partition sum of ST-MoE (arXiv
    2202.08906, equation 5).
    """
    chosen = jax.nn.one_hot(route(x, experts, config).experts, config.n_experts).mean(axis=1)
    scores = router_scores(x, experts, config)
    scores = scores / scores.sum(axis=-1, keepdims=True)
    squared = jnp.square(jax.nn.logsumexp(router_logits(x, experts), axis=-1))
    balance = config.n_experts * _mean(chosen, live) @ _mean(scores, live)
    return RouterLoss(balance, _mean(squared, live))


def _mean(values: Float[Array, "T ..."], live: Bool[Array, " T"]) -> Float[Array, "..."]:
    return live.astype(values.dtype) @ values / live.sum()
