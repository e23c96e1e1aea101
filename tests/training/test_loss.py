"""The masked-diffusion loss against plain numpy and on average; losses of routers by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.config import MoEConfig
from llada_jax.model.params import Experts
from llada_jax.training import loss
from llada_jax.training.data import TrainingBatch
from llada_jax.training.loss import Corruption, mask_probabilities, router_loss
from llada_jax.training.state import create_state, make_train_step
from tests.training.echo import CONFIG, MODEL, batch_at, example

VOCAB = 11
MASK_ID = 10

corrupt = jax.jit(loss.corrupt, static_argnums=(2, 3))
masked_diffusion_loss = jax.jit(loss.masked_diffusion_loss)


def make_batch(seed: int, batch: int = 4, length: int = 24) -> TrainingBatch:
    """Prompts of 5 tokens, 8 hidden tokens at the end, the rest is the target."""
    tokens = np.random.default_rng(seed).integers(0, MASK_ID, (batch, length)).astype(np.int32)
    place = np.broadcast_to(np.arange(length), tokens.shape)
    target, hidden = (place >= 5) & (place < length - 8), place >= length - 8
    return TrainingBatch(tokens, np.ones_like(target), target, hidden)


def brute_force(logits, tokens, target, masked, probability):
    total = 0.0
    for row in range(len(tokens)):
        row_loss = 0.0
        for i in np.flatnonzero(masked[row]):
            exponentials = np.exp(logits[row, i].astype(np.float64))
            share = exponentials[tokens[row, i]] / exponentials.sum()
            row_loss -= np.log(share) / probability[row]
        total += row_loss / target[row].sum()
    return total / len(tokens)


@pytest.mark.parametrize("seed", range(3))
def test_router_losses_match_a_loop_over_tokens(seed):
    batch = make_batch(seed)
    logits = 3 * np.random.default_rng(seed).standard_normal((*batch.tokens.shape, VOCAB))
    corruption = corrupt(jax.random.key(seed), batch, MASK_ID, 1e-3)
    result = masked_diffusion_loss(
        jnp.asarray(logits, jnp.float32), batch.tokens, batch.target, corruption
    )
    masked = np.asarray(corruption.masked)
    expected = brute_force(
        logits, batch.tokens, batch.target, masked, np.asarray(corruption.probability)
    )
    np.testing.assert_allclose(result.loss, expected, rtol=1e-4)
    right = logits.argmax(-1)[masked] == batch.tokens[masked]
    np.testing.assert_allclose(result.accuracy, right.mean() if right.size else 0, rtol=1e-6)


def test_a_uniform_model_has_a_loss_of_log_vocab():
    batch = make_batch(0, batch=32)
    logits = jnp.zeros((*batch.tokens.shape, VOCAB))

    @jax.jit
    @jax.vmap
    def losses_of(key):
        corruption = corrupt(key, batch, MASK_ID, 1e-3)
        return masked_diffusion_loss(logits, batch.tokens, batch.target, corruption).loss

    losses = np.asarray(losses_of(jax.random.split(jax.random.key(0), 400)))
    assert abs(losses.mean() - np.log(VOCAB)) < 4 * losses.std() / np.sqrt(400)


def test_a_perfect_model_has_no_loss():
    batch = make_batch(1)
    corruption = corrupt(jax.random.key(0), batch, MASK_ID, 1e-3)
    logits = 100 * np.eye(VOCAB, dtype=np.float32)[batch.tokens]
    result = masked_diffusion_loss(logits, batch.tokens, batch.target, corruption)
    assert result.loss < 1e-6
    assert result.accuracy == 1


def test_the_gradient_is_finite_and_only_at_masked_tokens():
    batch = make_batch(2)
    corruption = corrupt(jax.random.key(3), batch, MASK_ID, 1e-3)
    logits = np.random.default_rng(4).standard_normal((*batch.tokens.shape, VOCAB), np.float32)
    gradient = np.asarray(
        jax.jit(
            jax.grad(
                lambda x: masked_diffusion_loss(x, batch.tokens, batch.target, corruption).loss
            )
        )(logits)
    )
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(np.abs(gradient).max(axis=-1) > 0, np.asarray(corruption.masked))


def test_a_canvas_without_masks_has_no_loss():
    batch = make_batch(3)
    nothing = Corruption(
        *map(jnp.asarray, (batch.tokens, batch.tokens < 0, np.full(4, 1e-3, np.float32)))
    )
    logits = jnp.zeros((*batch.tokens.shape, VOCAB))
    result = masked_diffusion_loss(logits, batch.tokens, batch.target, nothing)
    assert result.loss == 0
    assert result.accuracy == 0


@pytest.mark.parametrize("seed", range(3))
def test_prompts_stay_clean_and_hidden_tokens_stay_masked(seed):
    batch = make_batch(seed)
    corruption = corrupt(jax.random.key(seed), batch, MASK_ID, 1e-3)
    assert not (np.asarray(corruption.masked) & ~batch.target).any()
    clean = ~np.asarray(corruption.masked) & ~batch.hidden
    np.testing.assert_array_equal(np.asarray(corruption.tokens)[clean], batch.tokens[clean])
    assert (np.asarray(corruption.tokens)[~clean] == MASK_ID).all()


def test_tokens_are_masked_with_the_probability_of_their_canvas():
    batch = make_batch(0, batch=8, length=4000)
    corruption = corrupt(jax.random.key(0), batch, MASK_ID, 1e-3)
    share = np.asarray(corruption.masked).sum(axis=1) / batch.target.sum(axis=1)
    np.testing.assert_allclose(share, corruption.probability, atol=0.03)


def test_probabilities_cover_their_range_evenly():
    smallest = 0.1
    draw = jax.jit(jax.vmap(lambda key: mask_probabilities(key, 16, smallest)))
    draws = np.asarray(draw(jax.random.split(jax.random.key(0), 200)))
    assert draws.min() >= smallest
    assert draws.max() < 1
    gaps = np.diff(np.sort(draws, axis=1), axis=1)
    np.testing.assert_allclose(gaps, (1 - smallest) / 16, atol=1e-5)
    # Each single canvas is also uniform: mean (1 + smallest) / 2 in every column.
    np.testing.assert_allclose(draws.mean(axis=0), (1 + smallest) / 2, atol=0.08)


MOE = MoEConfig(n_experts=4, experts_per_token=2, expert_width=8)
MIXTURE = MODEL.replace(family="llada_moe", qk_norm=True, moe=MOE)


def loss_of(x, live, config=MOE):
    """For a router with its input as logits."""
    nothing = jnp.zeros((4, 1, 4))
    experts = Experts(jnp.eye(4), None, nothing, nothing, nothing, None)
    return router_loss(jnp.array(x, jnp.float32), experts, config, jnp.array(live))


@pytest.mark.parametrize("router", ["softmax", "sigmoid"])
def test_even_loads_give_one_and_padding_is_not_counted(router):
    config = MoEConfig(n_experts=4, experts_per_token=2, expert_width=8, router=router)
    rows = [[5, 5, 0, 0], [0, 0, 5, 5], [9, 9, 0, 0]]
    assert loss_of(rows, [True, True, False], config).balance == pytest.approx(1)
    assert loss_of(rows, [True, True, True], config).balance > 1.02


def test_loads_of_two_experts_for_all_tokens():
    found = loss_of([[20, 20, 0, 0]] * 3, [True] * 3)
    assert found.balance == pytest.approx(2)
    assert found.z == pytest.approx((20 + np.log(2)) ** 2, rel=1e-5)


def test_descending_the_balance_loss_evens_the_load():
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
