"""The schedule, and which parameters each optimizer takes."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from llada_jax.config import TrainConfig
from llada_jax.model.params import init_params
from llada_jax.training.state import learning_rate, make_optimizer
from tests.training import echo

MODEL = echo.MODEL.replace(
    width=8, n_layers=2, n_kv_heads=1, head_dim=4, rotary_dims=4, ffn_width=12,
    mask_id=None, eos_id=None,
)  # fmt: skip


def make_config(**changes) -> TrainConfig:
    fields = {"steps": 100, "warmup_steps": 10, "decay_steps": 40, "peak_lr": 0.01}
    return TrainConfig(**{**fields, **changes})


def test_the_learning_rate_rises_stays_and_falls_to_zero():
    schedule = learning_rate(make_config())
    rates = [np.asarray(schedule(step)) for step in (0, 5, 10, 35, 60, 80, 99, 100)]
    expected = [0, 0.005, 0.01, 0.01, 0.01, 0.005, 0.00025, 0]
    np.testing.assert_allclose(rates, expected, atol=1e-8)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_without_warmup_and_decay_the_rate_is_constant(optimizer):
    config = make_config(warmup_steps=0, decay_steps=0, optimizer=optimizer)
    rates = [np.asarray(learning_rate(config)(step)) for step in (0, 50, 99)]
    np.testing.assert_allclose(rates, 0.01)


def first_update(config: TrainConfig, params: Any, gradient: Any) -> Any:
    optimizer = make_optimizer(config)
    update = jax.jit(lambda g, p: optimizer.update(g, optimizer.init(p), p)[0])
    return jax.device_get(update(gradient, params))


random_params = jax.jit(partial(init_params, MODEL))
"""Of a key."""


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_it_goes_downhill_on_every_parameter(optimizer):
    config = make_config(optimizer=optimizer, warmup_steps=0, weight_decay=0.0)
    params, gradient = jax.device_get([random_params(jax.random.key(seed)) for seed in (0, 1)])
    updates = first_update(config, params, gradient)
    for update, slope in zip(jax.tree.leaves(updates), jax.tree.leaves(gradient), strict=True):
        assert np.vdot(update, slope) < 0


def test_muon_orthogonalizes_the_layers_and_leaves_the_rest_to_adam():
    config = make_config(optimizer="muon", warmup_steps=0, weight_decay=0.0, peak_lr=1.0)
    params, gradient = jax.device_get([random_params(jax.random.key(seed)) for seed in (0, 1)])
    updates = first_update(config, params, gradient)
    singular = np.linalg.svd(updates.layers[0].ffn.up, compute_uv=False)
    assert singular.max() / singular.min() < 2.5
    # Adam's first step has one size everywhere, however large the gradient is.
    for update in (updates.embedding, updates.head):
        assert np.abs(update).max() / np.abs(update).min() < 1.01


def test_adamw_decays_matrices_only():
    config = make_config(optimizer="adamw", warmup_steps=0, weight_decay=0.5, peak_lr=0.1)
    params: Any = jax.device_get(random_params(jax.random.key(0)))
    updates = first_update(config, params, jax.tree.map(np.zeros_like, params))
    down = params.layers[1].ffn.down
    np.testing.assert_allclose(updates.layers[1].ffn.down, -0.05 * down, rtol=1e-5)
    np.testing.assert_array_equal(updates.final_norm, np.zeros(MODEL.width))


def test_large_gradients_are_clipped_together():
    config = make_config(optimizer="adamw", warmup_steps=0, clip_norm=1.0)
    params = jax.device_get(random_params(jax.random.key(0)))
    small, large = (
        first_update(config, params, jax.tree.map(partial(np.multiply, np.float32(scale)), params))
        for scale in (1e3, 1e6)
    )
    for one, other in zip(*map(jax.tree.leaves, (small, large)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)


def test_accumulated_updates_follow_the_schedule_of_the_steps():
    config = make_config(optimizer="adamw", warmup_steps=0, decay_steps=100, accumulate=2,
                         weight_decay=0.0)  # fmt: skip
    params = {"a": np.ones(3, np.float32)}
    optimizer = make_optimizer(config)
    state, sizes = optimizer.init(params), []
    for gradient in (1.0, 3.0, 2.0, 2.0):
        update: Any
        update, state = optimizer.update({"a": np.full(3, gradient, np.float32)}, state, params)
        sizes.append(float(np.abs(update["a"]).max()))
    rates = [float(learning_rate(config)(step)) for step in (0, 2)]
    np.testing.assert_allclose(sizes, [0, rates[0], 0, rates[1]], rtol=1e-4)
