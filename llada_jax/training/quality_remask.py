"""A linear head that tells of a token on the canvas whether it is right: PRISM (arXiv 2510.01384);
and the rule that decodes with it.

The model stays as it is. Canvases are masked, some masks are filled with the model's own samples,
and the head learns, from the state of each such position, whether the sample is the right token.
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
    """A logit of a hidden state: above 0 where the token is more likely right than not."""

    weight: Float[Array, " D"]
    bias: Float[Array, ""]

    def logits(self, hidden: Float[Array, "... D"]) -> Float[Array, "..."]:
        """Returns the logit of each state."""
        return hidden.astype(jnp.float32) @ self.weight + self.bias


class Revealed(NamedTuple):
    """Canvases with the model's own samples: what it reads, where they stand, which are right."""

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
) -> Revealed:
    """Fills `count` masks of each canvas, drawn at random, with samples; all where it has fewer."""
    place_key, token_key = jax.random.split(key)
    drawn = jnp.where(masked, jax.random.uniform(place_key, masked.shape), -1)
    least = jax.lax.top_k(drawn, count)[0][:, -1:]
    at = masked & (drawn >= least)
    sampled = jax.random.categorical(token_key, logits)
    return Revealed(jnp.where(at, sampled, corrupted), at, at & (sampled == truth))


def quality_loss(
    head: QualityHead, hidden: Float[Array, "B L D"], revealed: Revealed
) -> Float[Array, ""]:
    """Returns the mean binary cross-entropy, in nats, over what was revealed."""
    logits = head.logits(hidden)
    each = optax.sigmoid_binary_cross_entropy(logits, revealed.right.astype(jnp.float32))
    return jnp.where(revealed.at, each, 0).sum() / jnp.maximum(revealed.at.sum(), 1)


def fit_quality_head(
    params: ModelParams,
    model: ModelConfig,
    batches: Iterable[TrainingBatch],
    revealed: int = 8,
    learning_rate: float = 1e-2,
    seed: int = 0,
) -> tuple[QualityHead, list[float]]:
    """Fits a head with Adam, a step a batch; returns it and the loss of each step, in nats.

    Raises ValueError for a model without [MASK], and where nothing is to be revealed.
    """
    require(model.mask_id is not None, "mask_id is None; allowed: a token id")
    require(revealed > 0, f"revealed is {revealed}; allowed: 1 or more")
    optimizer = optax.adam(learning_rate)
    head = QualityHead(jnp.zeros(model.width), jnp.zeros(()))
    state, losses = optimizer.init(head), []
    for step, batch in enumerate(batches):
        key = jax.random.fold_in(jax.random.key(seed), step)
        hidden, shown = _own_samples(params, model, batch, key, revealed)
        loss, gradient = jax.value_and_grad(quality_loss)(head, hidden, shown)
        updates, state = optimizer.update(gradient, state)
        head: Any = optax.apply_updates(head, updates)
        losses.append(float(loss))
    return head, losses


@partial(jax.jit, static_argnums=(1, 4))
def _own_samples(
    params: ModelParams, model: ModelConfig, batch: Any, key: Key[Array, ""], revealed: int
) -> tuple[Float[Array, "B L D"], Revealed]:
    assert model.mask_id is not None
    mask_key, sample_key = jax.random.split(key)
    corruption = corrupt(mask_key, batch, model.mask_id, TrainConfig.min_mask_probability)
    logits = forward(params, model, corruption.tokens, batch.live)
    logits = logits.at[..., model.mask_id].set(-jnp.inf)
    shown = reveal(logits, corruption.tokens, corruption.masked, batch.tokens, revealed, sample_key)
    return hidden_states(params, model, shown.tokens, batch.live), shown


@rule
class QualityRemask:
    """Commits what reaches a threshold, and masks again what the head holds to be wrong.

    Attributes:
      weight: The head's weight and, last, its bias.
      doubt: A committed token is masked again where it is right with less probability.
    """

    needs: ClassVar[set[str]] = {"confidence", "hidden"}
    revises = True
    rescore = "token"

    weight: tuple[float, ...]
    threshold: float = 0.9
    doubt: float = 0.5

    @classmethod
    def of(cls, head: QualityHead, **numbers: float) -> "QualityRemask":
        """Returns the rule of a head."""
        return cls(weight=(*head.weight.tolist(), head.bias.item()), **numbers)

    def decide(self, seen: Observation, state: RuleState) -> tuple[Decision, RuleState]:
        *weight, bias = self.weight
        quality = jax.nn.sigmoid(seen.hidden.astype(jnp.float32) @ jnp.asarray(weight) + bias)
        wrong = seen.rescored & (quality < self.doubt)
        return Decision(commit=seen.confidence >= self.threshold, remask=wrong), state
