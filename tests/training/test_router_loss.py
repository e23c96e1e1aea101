"""Losses of routers by hand, and what they do to loads while a model is trained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.config import MoEConfig
from llada_jax.model.params import Experts
from llada_jax.training.loss import router_loss
from llada_jax.training.state import create_state, make_train_step
from tests.training.echo import CONFIG, MODEL, batch_at, example

MOE = MoEConfig(n_experts=4, experts_per_token=2, expert_width=8)
MIXTURE = MODEL.replace(family="llada_moe", qk_norm=True, moe=MOE)


def loss_of(x, live, config=MOE):
    """Of a router whose logits are its input."""
    nothing = jnp.zeros((4, 1, 4))
    experts = Experts(jnp.eye(4), None, nothing, nothing, nothing, None)
    return router_loss(jnp.array(x, jnp.float32), experts, config, jnp.array(live))


@pytest.mark.parametrize("router", ["softmax", "sigmoid"])
def test_even_loads_give_one_and_padding_is_not_counted(router):
    config = MoEConfig(n_experts=4, experts_per_token=2, expert_width=8, router=router)
    rows = [[5, 5, 0, 0], [0, 0, 5, 5], [9, 9, 0, 0]]
    assert loss_of(rows, [True, True, False], config).balance == pytest.approx(1)
    assert loss_of(rows, [True, True, True], config).balance > 1.02


def test_two_experts_for_everybody():
    found = loss_of([[20, 20, 0, 0]] * 3, [True] * 3)
    assert found.balance == pytest.approx(2)
    assert found.z == pytest.approx((20 + np.log(2)) ** 2, rel=1e-5)


def test_going_down_the_balance_evens_the_load():
    """From a router that favours two experts, by the gradient of its losses alone."""
    rng = np.random.default_rng(0)
    x, live = 1 + rng.standard_normal((64, 4)).astype(np.float32), np.ones(64, bool)
    nothing = np.zeros((4, 1, 4), np.float32)

    @jax.jit
    @jax.value_and_grad
    def balance_of(router):
        return router_loss(x, Experts(router, None, nothing, nothing, nothing, None), MOE, live)[0]

    router = 0.3 * rng.standard_normal((4, 4)).astype(np.float32)
    router[:2] += np.float32(0.4)
    found = []
    for _ in range(100):
        balance, slope = balance_of(router)
        found.append(float(balance))
        router = router - np.float32(0.5) * np.asarray(slope)
    assert found[-1] < 1.05 < 1.1 < found[0]


@pytest.mark.slow
def test_training_spreads_the_load_and_the_loss_falls():
    ends = {}
    for weight in (0.0, 1.0):
        config = CONFIG.replace(optimizer="adamw", balance_weight=weight)
        state, step = create_state(MIXTURE, config), make_train_step(MIXTURE, config)
        rows = []
        for number in range(config.steps):
            state, metrics = step(state, batch_at(example, config, 1, number))
            rows.append(jax.device_get(metrics))
        losses = [row["loss"] for row in rows]
        assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:5])
        ends[weight] = np.mean([row["router_balance"] for row in rows[-10:]])
    assert ends[1.0] < 1.15 < ends[0.0]
