"""Initialises a mixture of experts from a dense model (sparse upcycling, Komatsuzaki et al.,
arXiv 2212.05055).

Attention, norms and vocabulary are copied. The dense model's feed-forward neurons are distributed
to the experts several times, in a different order each time, so that experts differ from the first
step on. Unlike in the paper, experts are narrower than the dense feed-forward layer.
"""

import jax.numpy as jnp
import numpy as np

from llada_jax.config import ModelConfig, MoEConfig, require
from llada_jax.model.params import Experts, FeedForward, ModelParams

ROUTER_STD = 0.5
"""Initial standard deviation of the router's logits, for inputs of unit variance."""


def dense_shape(config: ModelConfig) -> ModelConfig:
    """Returns the shape of a mixture's dense parent."""
    return config.replace(family="llada", moe=None)


def upcycle(parent: ModelParams, config: ModelConfig, seed: int) -> ModelParams:
    """Returns a mixture's float32 parameters, from a dense parent with `dense_shape(config)`.

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
        order = np.concatenate([rng.permutation(config.ffn_width) for _ in range(rounds)])
        chosen = order[:neurons].reshape(moe.n_experts, moe.expert_width)
        router = rng.standard_normal((moe.n_experts, config.width)) * ROUTER_STD / config.width**0.5
        assert isinstance(layer.ffn, FeedForward)
        layers.append(layer._replace(ffn=_experts(layer.ffn, chosen, router, moe)))
    return parent._replace(layers=tuple(layers))


def _experts(
    dense: FeedForward, neurons: np.ndarray, router: np.ndarray, moe: MoEConfig
) -> Experts:
    """Returns experts with the given neurons [E, F]. Outputs are scaled so that a router that
    weighs each of its k experts with 1 / E gives the parent's output on average."""
    gate, up, down = (jnp.asarray(matrix, jnp.float32) for matrix in dense)
    neurons_per_token = moe.experts_per_token * moe.expert_width / len(gate)
    return Experts(
        router=jnp.asarray(router, jnp.float32),
        selection_bias=None,
        gate=gate[neurons],
        up=up[neurons],
        down=jnp.moveaxis(down[:, neurons], 0, 1) * (moe.n_experts / neurons_per_token),
        shared=None,
    )
