"""A linear head that predicts whether a token on the canvas is right (PRISM, arXiv 2510.01384), and
a rule that decodes with it.

The model is not changed. Canvases are masked, some masks are filled with the model's own samples,
and the head learns from the hidden state at each of them whether the sample is the right token.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key

from llada_jax.config import ModelConfig, TrainConfig, require
from llada_jax.model.forward import forward, hidden_states
from llada_jax.model.params import ModelParams
from llada_jax.sampler.rules.rule import Decision, Observation, rule
from llada_jax.sampler.state import RuleState
from llada_jax.training.data import TrainingBatch
from llada_jax.training.loss import corrupt


class QualityHead(NamedTuple):
    """Maps a hidden state to a logit, above 0 if the token is more likely right than wrong."""

    weight: Float[Array, " D"]
    bias: Float[Array, ""]

    def logits(self, hidden: Float[Array, "... D"]) -> Float[Array, "..."]:
        return hidden.astype(jnp.float32) @ self.weight + self.bias


class RevealedSamples(NamedTuple):
    """Canvases with samples in place of some masks, their positions, and which are right."""

    tokens: Int[Array, "B L"]
    at: Bool[Array, "B L"]
    right: Bool[Array, "B L"]


def reveal(
    logits: Float[Array, "B L V"],
    corrupted: Int[Array, "B L"],
    masked: Bool[Array, "B L"],
    truth: Int[Array, "B L"],
    count: int,
    key: Key[Array, ""],
) -> RevealedSamples:
    """Fills `count` random masks of each canvas with samples, or all if it has fewer."""
    mask_key, token_key = jax.random.split(key)
    order = jnp.where(masked, jax.random.uniform(mask_key, masked.shape), -1)
    smallest = jax.lax.top_k(order, count)[0][:, -1:]
    at = masked & (order >= smallest)
    sampled = jax.random.categorical(token_key, logits)
    return RevealedSamples(jnp.where(at, sampled, corrupted), at, at & (sampled == truth))


def quality_loss(
    head: QualityHead, hidden: Float[Array, "B L D"], revealed: RevealedSamples
) -> Float[Array, ""]:
    """Returns the mean binary cross-entropy over the revealed samples, in nats."""
    logits = head.logits(hidden)
    losses = optax.sigmoid_binary_cross_entropy(logits, revealed.right.astype(jnp.float32))
    return jnp.where(revealed.at, losses, 0).sum() / jnp.maximum(revealed.at.sum(), 1)


def fit_quality_head(
    params: ModelParams,
    model: ModelConfig,
    batches: Iterable[TrainingBatch],
    revealed: int = 8,
    learning_rate: float = 1e-2,
    seed: int = 0,
) -> tuple[QualityHead, list[float]]:
    """Fits a head with Adam, one step per batch; returns it and the loss of each step, in nats.

    Raises ValueError for a model without [MASK], and for `revealed` below 1.
    """
    require(model.mask_id is not None, "mask_id is None; allowed: a token id")
    require(revealed > 0, f"revealed is {revealed}; allowed: 1 or more")
    optimizer = optax.adam(learning_rate)
    head = QualityHead(jnp.zeros(model.width), jnp.zeros(()))
    state, losses = optimizer.init(head), []
    for step, batch in enumerate(batches):
        key = jax.random.fold_in(jax.random.key(seed), step)
        hidden, samples = _reveal_own_samples(params, model, batch, key, revealed)
        loss, gradient = jax.value_and_grad(quality_loss)(head, hidden, samples)
        updates, state = optimizer.update(gradient, state)
        head: Any = optax.apply_updates(head, updates)
        losses.append(float(loss))
    return head, losses


@partial(jax.jit, static_argnums=(1, 4))
def _reveal_own_samples(
    params: ModelParams, model: ModelConfig, batch: Any, key: Key[Array, ""], revealed: int
) -> tuple[Float[Array, "B L D"], RevealedSamples]:
    """Returns hidden states of canvases with the model's own samples, and the samples."""
    assert model.mask_id is not None
    mask_key, sample_key = jax.random.split(key)
    corruption = corrupt(mask_key, batch, model.mask_id, TrainConfig.min_mask_probability)
    logits = forward(params, model, corruption.tokens, batch.live)
    logits = logits.at[..., model.mask_id].set(-jnp.inf)
    samples = reveal(
        logits, corruption.tokens, corruption.masked, batch.tokens, revealed, sample_key
    )
    return hidden_states(params, model, samples.tokens, batch.live), samples


@rule
class QualityRemask:
    """Commits tokens that reach a threshold, and masks tokens again that the head judges wrong.

    Attributes:
      weight: The head's weight and, last, its bias.
      doubt: Committed tokens are masked again below this probability of being right.
    """

    needs: ClassVar[set[str]] = {"confidence", "hidden"}
    revises = True
    rescore = "token"

    weight: tuple[float, ...]
    threshold: float = 0.9
    doubt: float = 0.5

    @classmethod
    def of(cls, head: QualityHead, **numbers: float) -> "QualityRemask":
        """Returns the rule with a head's weights."""
        return cls(weight=(*head.weight.tolist(), head.bias.item()), **numbers)

    def decide(self, seen: Observation, state: RuleState) -> tuple[Decision, RuleState]:
        *weight, bias = self.weight
        quality = jax.nn.sigmoid(seen.hidden.astype(jnp.float32) @ jnp.asarray(weight) + bias)
        wrong = seen.rescored & (quality < self.doubt)
        return Decision(commit=seen.confidence >= self.threshold, remask=wrong), state
