"""The schedule, and which parameters each optimizer takes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from llada_jax.config import ModelConfig, TrainConfig
from llada_jax.model.params import init_params
from llada_jax.training.optimizer import learning_rate, make_optimizer

MODEL = ModelConfig(
    family="llada",
    vocab_size=16,
    width=8,
    n_layers=2,
    n_heads=2,
    n_kv_heads=1,
    head_dim=4,
    ffn_width=12,
    rope_theta=1e4,
    norm_eps=1e-5,
    max_length=64,
)


def make_config(**changes) -> TrainConfig:
    fields = {"steps": 100, "warmup_steps": 10, "decay_steps": 40, "peak_lr": 0.01}
    return TrainConfig(**{**fields, **changes})


def test_the_learning_rate_rises_stays_and_falls_to_zero():
    schedule = learning_rate(make_config())
    rates = [float(schedule(step)) for step in (0, 5, 10, 35, 60, 80, 99, 100)]
    expected = [0, 0.005, 0.01, 0.01, 0.01, 0.005, 0.00025, 0]
    np.testing.assert_allclose(rates, expected, atol=1e-8)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_without_warmup_and_decay_the_rate_is_constant(optimizer):
    config = make_config(warmup_steps=0, decay_steps=0, optimizer=optimizer)
    assert [float(learning_rate(config)(step)) for step in (0, 50, 99)] == pytest.approx([0.01] * 3)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_it_goes_downhill_on_every_parameter(optimizer):
    config = make_config(optimizer=optimizer, warmup_steps=0, weight_decay=0.0)
    params = init_params(MODEL, jax.random.key(0))
    gradient = init_params(MODEL, jax.random.key(1))
    optimizer_ = make_optimizer(config)
    updates, _ = optimizer_.update(gradient, optimizer_.init(params), params)
    for update, slope in zip(jax.tree.leaves(updates), jax.tree.leaves(gradient), strict=True):
        assert float(jnp.vdot(update, slope)) < 0


def test_muon_orthogonalizes_the_layers_and_leaves_the_rest_to_adam():
    config = make_config(optimizer="muon", warmup_steps=0, weight_decay=0.0, peak_lr=1.0)
    params = init_params(MODEL, jax.random.key(0))
    gradient = init_params(MODEL, jax.random.key(1))
    optimizer = make_optimizer(config)
    updates, _ = optimizer.update(gradient, optimizer.init(params), params)
    singular = jnp.linalg.svd(updates.layers[0].ffn.up, compute_uv=False)
    assert float(singular.max() / singular.min()) < 2.5
    # Adam's first step has one size everywhere, however large the gradient is.
    for update in (updates.embedding, updates.head):
        assert float(jnp.abs(update).max() / jnp.abs(update).min()) < 1.01


def test_adamw_decays_matrices_only():
    config = make_config(optimizer="adamw", warmup_steps=0, weight_decay=0.5, peak_lr=0.1)
    params = init_params(MODEL, jax.random.key(0))
    optimizer = make_optimizer(config)
    nothing = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(nothing, optimizer.init(params), params)
    decayed = optax.apply_updates(params, updates)
    np.testing.assert_allclose(decayed.layers[1].ffn.down, 0.95 * params.layers[1].ffn.down, 1e-5)
    np.testing.assert_array_equal(decayed.final_norm, params.final_norm)


def test_large_gradients_are_clipped_together():
    config = make_config(optimizer="adamw", clip_norm=1.0)
    params = init_params(MODEL, jax.random.key(0))
    optimizer = make_optimizer(config)
    state = optimizer.init(params)
    small, large = (
        optimizer.update(jax.tree.map(lambda leaf, s=scale: s * leaf, params), state, params)
        for scale in (1e3, 1e6)
    )
    for one, other in zip(*map(jax.tree.leaves, (small, large)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)
