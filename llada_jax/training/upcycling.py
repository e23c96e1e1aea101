"""A mixture of experts that begins with what a dense model knows.

Attention, norms and vocabulary are the dense model's. Its feed-forward neurons are dealt out to the
experts again and again, each time in another order, so that experts differ from the first step on
(sparse upcycling, Komatsuzaki et al., arXiv 2212.05055, with experts narrower than the parent).
"""

import jax.numpy as jnp
import numpy as np

from llada_jax.config import ModelConfig, MoEConfig, require
from llada_jax.model.params import Experts, FeedForward, ModelParams

ROUTER_STD = 0.5
"""Of the router's logits at first, for inputs of unit variance."""


def dense_shape(config: ModelConfig) -> ModelConfig:
    """Returns the dense shape that a mixture's parent has."""
    return config.replace(family="llada", moe=None)


def upcycled(parent: ModelParams, config: ModelConfig, seed: int) -> ModelParams:
    """Returns a mixture's parameters, float32, of a dense parent's with `dense_shape(config)`.

    Raises ValueError for routed layers that the parent cannot fill: shared experts, dense layers,
    or fewer neurons in all experts than the parent has.
    """
    moe = config.moe
    assert moe is not None
    require(
        not moe.first_layer and not moe.shared_width,
        f"first_layer, shared_width are {moe.first_layer}, {moe.shared_width}; allowed: 0, 0",
    )
    neurons = moe.n_experts * moe.expert_width
    require(
        neurons >= config.ffn_width,
        f"the experts have {neurons} neurons; allowed: ffn_width ({config.ffn_width}) or more",
    )
    rng = np.random.default_rng(seed)
    rounds = -(-neurons // config.ffn_width)
    layers = []
    for layer in parent.layers:
        dealt = np.concatenate([rng.permutation(config.ffn_width) for _ in range(rounds)])
        chosen = dealt[:neurons].reshape(moe.n_experts, moe.expert_width)
        router = rng.standard_normal((moe.n_experts, config.width)) * ROUTER_STD / config.width**0.5
        assert isinstance(layer.ffn, FeedForward)
        layers.append(layer._replace(ffn=_experts(layer.ffn, chosen, router, moe)))
    return parent._replace(layers=tuple(layers))


def _experts(
    dense: FeedForward, neurons: np.ndarray, router: np.ndarray, moe: MoEConfig
) -> Experts:
    """Deals neurons [E, F]. A row that weighs k of E experts by 1 / E each then gets the parent's
    output on average."""
    gate, up, down = (jnp.asarray(each, jnp.float32) for each in dense)
    taken = moe.experts_per_token * moe.expert_width / len(gate)
    return Experts(
        router=jnp.asarray(router, jnp.float32),
        selection_bias=None,
        gate=gate[neurons],
        up=up[neurons],
        down=jnp.moveaxis(down[:, neurons], 0, 1) * (moe.n_experts / taken),
        shared=None,
    )
