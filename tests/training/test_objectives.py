"""Each objective against plain numpy on a small model: its loss, gradient and canvases."""

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from llada_jax.config import TrainConfig
from llada_jax.model.forward import forward
from llada_jax.training.data import TrainingBatch
from llada_jax.training.loss import corrupt
from llada_jax.training.objectives import (
    Masked,
    Objective,
    Reader,
    Revision,
    SelfFill,
    guesses,
    revision_loss,
    swap_token,
)
from llada_jax.training.state import create_state, make_train_step
from tests.training.echo import CONFIG, MODEL, batch_at, example

SMALLEST = 1e-3
MASK = MODEL.mask_id
BATCH = jax.tree.map(jnp.asarray, batch_at(example, CONFIG, MODEL.eos_id, 0))


class RepeatedTokens(Revision):
    """A custom objective: half of the targets repeat the token before them."""

    def corrupted(self, reader, batch, key):
        repeats = batch.target & jax.random.bernoulli(key, 0.5, batch.tokens.shape)
        tokens = jnp.where(repeats, jnp.roll(batch.tokens, 1, axis=1), batch.tokens)
        return jnp.where(batch.hidden, reader.mask_id, tokens)


REVISING = [
    pytest.param(SelfFill(), id="self_fill"),
    pytest.param(RepeatedTokens(), id="custom"),
]


@pytest.fixture(scope="module")
def params():
    return create_state(MODEL, CONFIG.replace(seed=3)).params


@pytest.fixture(scope="module")
def logits_of(params):
    return jax.jit(lambda tokens, live: forward(params, MODEL, tokens, live))


class Seen(NamedTuple):
    """The loss and the metrics of an objective, and the tokens that its reader got."""

    loss: Array
    metrics: dict[str, Array]
    predicted: list[Array]
    looked: list[Array]


@cache
def recorded(objective):
    """Returns a compiled function of parameters and a key."""

    @jax.jit
    def run(params, key):
        predicted, looked = [], []

        def predict(tokens):
            predicted.append(tokens)
            return forward(params, MODEL, tokens, BATCH.live)

        def look(tokens, live):
            looked.append(tokens)
            return forward(params, MODEL, tokens, live)

        found = objective(Reader(MODEL, predict, look, SMALLEST), BATCH, key)
        return Seen(*found, predicted, looked)

    return run


def cross_entropies(logits, tokens):
    logits = np.asarray(logits, np.float64)
    log_total = np.log(np.exp(logits).sum(-1))
    return log_total - np.take_along_axis(logits, np.asarray(tokens)[..., None], -1)[..., 0]


@pytest.mark.parametrize("objective", [pytest.param(Masked(), id="masked"), *REVISING])
def test_the_loss_equals_a_loop_over_canvases(objective, logits_of, params):
    key = jax.random.key(5)
    loss, metrics, (seen,), _ = recorded(objective)(params, key)
    entropies = cross_entropies(logits_of(seen, BATCH.live), BATCH.tokens)
    revises = isinstance(objective, Revision)
    half = len(seen) // 2 if revises else len(seen)
    plain = TrainingBatch(*(each[:half] for each in BATCH))
    plain_key = jax.random.split(key)[0] if revises else key
    masked = jax.jit(corrupt, static_argnums=(2, 3))(plain_key, plain, MASK, SMALLEST)
    np.testing.assert_array_equal(seen[:half], masked.tokens)
    total = 0.0
    for row in range(len(seen)):
        target = np.asarray(BATCH.target[row])
        if row < half:
            counted, scale = np.asarray(masked.masked[row]), float(masked.probability[row])
        else:
            counted, scale = target, 1.0
        total += entropies[row][counted].sum() / (scale * target.sum())
    np.testing.assert_allclose(loss, total / len(seen), rtol=1e-5)
    np.testing.assert_allclose(metrics["loss"], loss)


@pytest.mark.parametrize("objective", REVISING)
def test_only_targets_differ_from_the_truth(objective, params):
    half = len(BATCH.tokens) // 2
    runs = [recorded(objective)(params, jax.random.key(seed)) for seed in range(8)]
    own = jax.tree.map(lambda each: np.asarray(each)[half:], BATCH)
    given = ~own.target & ~own.hidden
    shown = [np.asarray(run.predicted[0])[half:] for run in runs]
    for seen in shown:
        np.testing.assert_array_equal(seen[given], own.tokens[given])
        assert (seen[own.hidden] == MASK).all()
    assert any(((seen != own.tokens) & (seen != MASK))[own.target].any() for seen in shown)


@pytest.mark.parametrize(
    "objective", [SelfFill(), pytest.param(RepeatedTokens(), marks=pytest.mark.slow)]
)
def test_a_step_is_finite_and_follows_from_the_seed(objective):
    config = CONFIG.replace(optimizer="adamw")
    step = make_train_step(MODEL, config, objective)
    found = [step(create_state(MODEL, config), BATCH) for _ in range(2)]
    assert all(np.isfinite(value) for value in found[0][1].values())
    assert found[0][1]["gradient_norm"] > 0
    jax.tree.map(np.testing.assert_array_equal, found[0][1], found[1][1])
    jax.tree.map(np.testing.assert_array_equal, found[0][0].params, found[1][0].params)


def test_self_fill_shows_predictions_above_the_confidence(logits_of, params):
    objective = SelfFill(least=0.0, most=0.0, all_filled=1.0, swapped=0.0)
    run = recorded(objective)(params, jax.random.key(2))
    first, second = (np.asarray(each) for each in run.looked)
    target = np.asarray(BATCH.target[len(first) :])
    best = np.array(logits_of(first, BATCH.live[len(first) :]))
    best[..., MASK] = -np.inf
    filled = target & (first == MASK)
    np.testing.assert_array_equal(second[filled], best.argmax(-1)[filled])
    np.testing.assert_array_equal(second[~filled], first[~filled])


def test_an_unreachable_confidence_shows_no_predictions(params):
    objective = SelfFill(least=1, most=1, all_filled=0, swapped=0)
    run = recorded(objective)(params, jax.random.key(2))
    seen, half = np.asarray(run.predicted[0]), len(BATCH.tokens) // 2
    shown = seen[half:] != MASK
    np.testing.assert_array_equal(seen[half:][shown], np.asarray(BATCH.tokens[half:])[shown])


def test_guesses_name_the_best_token_and_the_best_wrong_one():
    logits = jnp.asarray([[[9.0, 1.0, 3.0, 2.0], [0.0, 5.0, 1.0, 4.0]]])
    found = guesses(logits, jnp.asarray([[2, 3]]), mask_id=0)
    np.testing.assert_array_equal(found.token, [[2, 1]])
    np.testing.assert_array_equal(found.wrong, [[3, 1]])
    exponentials = np.exp(np.asarray(logits, np.float64)[0, :, 1:])
    shares = exponentials / exponentials.sum(-1, keepdims=True)
    np.testing.assert_allclose(found.confidence[0], shares.max(-1), rtol=1e-6)
    np.testing.assert_allclose(
        np.exp(found.wrong_log_probability[0]), [shares[0, 2], shares[1, 0]], rtol=1e-6
    )


def test_a_swap_replaces_a_token_wherever_it_is_visible():
    tokens = jnp.asarray([[5, 7, 8, 7, 9, 7]])
    target = jnp.asarray([[False, True, True, True, True, True]])
    batch = TrainingBatch(tokens, jnp.ones_like(target), target, ~jnp.ones_like(target))
    logits = jnp.full((1, 6, 12), -50.0).at[0, 1, 11].set(0.0).at[0, 1, 7].set(1.0)
    seen = tokens.at[0, 5].set(0)
    found = swap_token(jax.random.key(0), seen, guesses(logits, tokens, 0), batch, 0)
    np.testing.assert_array_equal(found, [[5, 11, 8, 11, 9, 0]])


def test_shares_of_errors_are_counted_at_visible_tokens():
    tokens = jnp.asarray([[1, 2, 3, 4]])
    target = jnp.ones((1, 4), bool)
    batch = TrainingBatch(tokens, target, target, ~target)
    seen = jnp.asarray([[1, 9, 9, 0]])
    logits = jax.nn.one_hot(jnp.asarray([[5, 2, 9, 4]]), 10) * 20
    loss, found = revision_loss(logits, batch, seen, mask_id=0)
    assert {name: float(value) for name, value in found.items()} == pytest.approx(
        {"own_errors": 2 / 3, "repaired": 0.5, "broken": 1.0}
    )
    np.testing.assert_allclose(loss, cross_entropies(logits, tokens).mean(), rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(Objective.named, "rl"), "objective is 'rl'; allowed: masked, self_fill"),
        (partial(SelfFill, least=0.8, most=0.7), "least is 0.8; allowed: up to most"),
        (partial(SelfFill, swapped=2.0), "swapped is 2.0; allowed: 0 or more, up to 1"),
    ],
)
def test_bad_objectives_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_batch_of_one_canvas_is_refused():
    one = jax.tree.map(lambda each: each[:1], BATCH)
    with pytest.raises(ValueError, match="batch_size is 1; allowed with SelfFill: 2 or more"):
        SelfFill()(Reader(MODEL, None, None, SMALLEST), one, jax.random.key(0))


def test_every_objective_has_a_summary():
    assert Masked().summary == "no other term"
    assert "confidence from 0.35 to 0.75" in Objective.named("self_fill").summary
    assert TrainConfig(steps=2000).batch_size > 1
