"""Training steps: the loss falls, untrainable models are refused; schedule and optimizers."""

from functools import cache, partial
from typing import Any

import jax
import numpy as np
import pytest

from llada_jax.config import MoEConfig, TrainConfig
from llada_jax.model.params import init_params
from llada_jax.training.state import create_state, learning_rate, make_optimizer, make_train_step
from tests.training import echo
from tests.training.echo import CONFIG, MODEL, batch_at, example

ADAM = CONFIG.replace(optimizer="adamw", matmul_dtype="float32")
MUON = CONFIG.replace(optimizer="muon", matmul_dtype="bfloat16")
train_step = cache(partial(make_train_step, MODEL))
"""Of a configuration; compiled once."""


@pytest.mark.parametrize("config", [ADAM, MUON], ids=["adamw-float32", "muon-bfloat16"])
def test_the_loss_falls(config):
    state, losses = create_state(MODEL, config), []
    for number in range(config.steps):
        state, metrics = train_step(config)(state, batch_at(example, config, 1, number))
        losses.append(float(metrics["loss"]))
    assert int(state.step) == config.steps
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:5])
    assert set(metrics) == {"loss", "accuracy", "gradient_norm"}


def test_a_run_starts_with_a_copy_of_the_parent():
    parent = create_state(MODEL, CONFIG.replace(seed=7)).params
    before = jax.device_get(parent)
    state = create_state(MODEL, ADAM, parent)
    jax.tree.map(np.testing.assert_array_equal, state.params, before)
    train_step(ADAM)(state, batch_at(example, CONFIG, 1, 0))
    jax.tree.map(np.testing.assert_array_equal, parent, before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask_id": None}, "mask_id is None"),
        ({"eos_id": None}, "eos_id is None"),
        ({"shift_logits": True}, "shift_logits is True; allowed: False"),
    ],
)
def test_an_untrainable_model_is_an_error(changes, message):
    with pytest.raises(ValueError, match=message):
        create_state(MODEL.replace(**changes), CONFIG)


def test_narrow_products_leave_parameters_and_gradients_in_float32():
    batch = batch_at(example, CONFIG, 1, 0)
    norms = {}
    for config in (ADAM, MUON):
        state, metrics = train_step(config)(create_state(MODEL, config), batch)
        assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {np.dtype("float32")}
        norms[config.matmul_dtype] = float(metrics["gradient_norm"])
    assert norms["bfloat16"] != norms["float32"]
    np.testing.assert_allclose(norms["bfloat16"], norms["float32"], rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"remat": True}, {"activation_dtype": "bfloat16"}])
def test_rematerialization_changes_only_rounding(changes):
    batch = batch_at(example, CONFIG, 1, 0)
    plain = MUON if "activation_dtype" in changes else ADAM
    found = []
    for config in (plain, plain.replace(**changes)):
        state, metrics = train_step(config)(create_state(MODEL, config), batch)
        assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {np.dtype("float32")}
        found.append([float(metrics[name]) for name in ("loss", "gradient_norm")])
    near = 0.03 if "activation_dtype" in changes else 1e-5
    np.testing.assert_allclose(found[1], found[0], rtol=near)


def test_accumulated_batches_update_with_their_mean_gradient():
    config = ADAM.replace(accumulate=2, clip_norm=1e9)
    state = create_state(MODEL, config)
    before = jax.device_get(state.params)
    step, updates = train_step(config), []
    for number in range(4):
        state, _ = step(state, batch_at(example, config, 1, number))
        same = all(map(np.array_equal, *map(jax.tree.leaves, (state.params, before))))
        updates.append(not same)
        before = jax.device_get(state.params)
    assert updates == [False, True, False, True]
    accumulated: Any = state.opt_state
    assert int(state.step) == 4 and int(accumulated.gradient_step) == 2


def test_rematerialization_of_a_mixture_is_an_error():
    moe = MoEConfig(n_experts=4, experts_per_token=2, expert_width=8, shared_width=0)
    with pytest.raises(ValueError, match="remat is True for a mixture of experts"):
        create_state(MODEL.replace(moe=moe), ADAM.replace(remat=True))


SMALL_MODEL = echo.MODEL.replace(
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


random_params = jax.jit(partial(init_params, SMALL_MODEL))
"""Of a key."""


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_updates_go_against_the_gradient(optimizer):
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
    np.testing.assert_array_equal(updates.final_norm, np.zeros(SMALL_MODEL.width))


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
