"""One training step: the loss falls, and what cannot train says so."""

from functools import cache, partial
from typing import Any

import jax
import numpy as np
import pytest

from llada_jax.config import MoEConfig
from llada_jax.training.state import create_state, make_train_step
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


def test_a_parent_gives_the_first_parameters_and_keeps_its_own():
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
def test_a_model_that_cannot_be_trained_is_an_error(changes, message):
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
def test_what_saves_memory_changes_rounding_alone(changes):
    batch = batch_at(example, CONFIG, 1, 0)
    plain = MUON if "activation_dtype" in changes else ADAM
    found = []
    for config in (plain, plain.replace(**changes)):
        state, metrics = train_step(config)(create_state(MODEL, config), batch)
        assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {np.dtype("float32")}
        found.append([float(metrics[name]) for name in ("loss", "gradient_norm")])
    near = 0.03 if "activation_dtype" in changes else 1e-5
    np.testing.assert_allclose(found[1], found[0], rtol=near)


def test_accumulated_batches_make_one_update_by_their_mean_gradient():
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


def test_a_mixture_whose_layers_would_run_twice_is_an_error():
    moe = MoEConfig(n_experts=4, experts_per_token=2, expert_width=8, shared_width=0)
    with pytest.raises(ValueError, match="remat is True for a mixture of experts"):
        create_state(MODEL.replace(moe=moe), ADAM.replace(remat=True))
