"""What keeps a mixture of experts usable while it is trained: even loads, and small logits."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from llada_jax.config import ModelConfig, MoEConfig
from llada_jax.model.forward import plain_feed_forward
from llada_jax.model.moe import route, router_logits, router_scores
from llada_jax.model.params import Experts, Layer


class RouterLoss(NamedTuple):
    """Scalars of a layer, or the mean over layers."""

    balance: Float[Array, ""]
    """1 where all experts have the same load, up to their number where one has all of it."""
    z: Float[Array, ""]


class RouterLosses:
    """The feed-forward half of every layer, which notes each router's losses as it passes."""

    def __init__(self, live: Bool[Array, "B L"]) -> None:
        self._live = live.reshape(-1)
        self._of_layers: list[RouterLoss] = []

    def __call__(
        self, x: Float[Array, "B L D"], layer: Layer, config: ModelConfig, index: int
    ) -> Float[Array, "B L D"]:
        if isinstance(layer.ffn, Experts):
            assert config.moe is not None
            flat = x.reshape(-1, x.shape[-1])
            self._of_layers.append(router_loss(flat, layer.ffn, config.moe, self._live))
        return plain_feed_forward(x, layer, config, index)

    def mean(self) -> RouterLoss:
        return jax.tree.map(lambda *each: jnp.stack(each).mean(), *self._of_layers)


def router_loss(
    x: Float[Array, "T D"], experts: Experts, config: MoEConfig, live: Bool[Array, " T"]
) -> RouterLoss:
    """Averages two losses over the live rows.

    They are E sum_e (share of choices) (share of scores) of Switch Transformers (arXiv 2101.03961,
    equation 4), and the squared log of the logits' partition sum of ST-MoE (arXiv 2202.08906,
    equation 5).
    """
    chosen = jax.nn.one_hot(route(x, experts, config).experts, config.n_experts).mean(axis=1)
    scores = router_scores(x, experts, config)
    scores = scores / scores.sum(axis=-1, keepdims=True)
    squared = jnp.square(jax.nn.logsumexp(router_logits(x, experts), axis=-1))
    balance = config.n_experts * _mean(chosen, live) @ _mean(scores, live)
    return RouterLoss(balance, _mean(squared, live))


def _mean(values: Float[Array, "T ..."], live: Bool[Array, " T"]) -> Float[Array, "..."]:
    return live.astype(values.dtype) @ values / live.sum()
