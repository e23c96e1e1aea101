"""Scores of trajectories, estimates of them, and a step that raises a reward."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llada_jax as lj
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.record import Event
from llada_jax.training.policy import (
    GRPO,
    advantages,
    grpo_step,
    log_probabilities,
    masked_answers,
    pad_canvases,
    surrogate,
    token_batch,
    trajectory_canvases,
)
from tests.drawn_params import drawn_params
from tests.training.echo import MODEL

SAMPLER = SamplerConfig.preset(
    "threshold", gen_length=8, block_length=8, threshold=0.5, temperature=1.0
)
scores_of = jax.jit(log_probabilities, static_argnums=1)
PARAMS = jax.tree.map(lambda leaf: 3 * leaf if leaf.ndim > 1 else leaf, drawn_params(MODEL))


def run(params: Any = PARAMS, count: int = 4, seed: int = 0, **changes: Any) -> lj.Trace:
    model = lj.Model(MODEL, params, None)
    prompts = [[2, 5, 3 + row % 4] + [4] * (row % 2) for row in range(count)]
    return lj.generate(model, prompts, SAMPLER.replace(**changes), seed=seed, trace=True).trace


@cache
def trace() -> lj.Trace:
    return run()


def test_the_exact_score_matches_the_recorded_one():
    canvases = trajectory_canvases(trace(), MODEL)
    scores = (canvases.weight * np.asarray(scores_of(PARAMS, MODEL, canvases))).sum(axis=1)
    commits = trace().event_kind == Event.COMMIT
    recorded = np.zeros(4)
    np.add.at(recorded, trace().event_row[commits], np.log(trace().event_confidence[commits]))
    found = np.bincount(canvases.trajectory, scores, 4)
    np.testing.assert_allclose(found, recorded, rtol=1e-4, atol=1e-4)
    assert canvases.weight.sum() == commits.sum()


def test_the_gradient_of_the_exact_score_matches_its_slope():
    canvases = trajectory_canvases(trace(), MODEL)
    with jax.enable_x64(True):
        wide = jax.tree.map(np.float64, PARAMS)
        direction = jax.tree.map(
            lambda leaf: np.random.default_rng(leaf.size).normal(size=leaf.shape), wide
        )

        @jax.jit
        @jax.value_and_grad
        def score(by):
            moved = jax.tree.map(lambda leaf, way: leaf + by * way, wide, direction)
            return log_probabilities(moved, MODEL, canvases).sum()

        step = 5e-5
        slope = (score(step)[0] - score(-step)[0]) / (2 * step)
        np.testing.assert_allclose(score(0.0)[1], slope, rtol=1e-2)


@pytest.mark.parametrize(
    ("changes", "field", "ignored"),
    [
        ({"block_length": 4}, "waiting", 0),
        ({"accept": "quota", "threshold": None, "steps": 4}, "waiting", 0),
        ({"temperature": 1.5}, "inverse_temperature", 1),
    ],
)
def test_the_mean_gradient_of_the_exact_score_is_zero(changes, field, ignored):
    """True of the log-probability of any samples: probabilities add up to 1."""
    found = run(count=256, **changes)
    canvases = trajectory_canvases(found, MODEL)

    @jax.jit
    def slopes(canvases):
        def scores(scale):
            scaled = jax.tree.map(lambda leaf: scale * leaf, PARAMS)
            return log_probabilities(scaled, MODEL, canvases).sum(axis=1)

        return jax.jvp(scores, (1.0,), (1.0,))[1]

    def distance_from_zero(canvases):
        slope = np.bincount(canvases.trajectory, slopes(canvases))
        return abs(slope.mean()) / (slope.std() / np.sqrt(len(slope)))

    wrong = canvases._replace(**{field: np.full_like(getattr(canvases, field), ignored)})
    assert distance_from_zero(canvases) < 3 < distance_from_zero(wrong)


def test_one_canvas_estimates_an_answer_without_its_other_tokens():
    canvases = masked_answers(trace(), MODEL, np.random.default_rng(0), prompt_share=0.5)
    answer = np.arange(canvases.tokens.shape[1]) >= trace().prompt_lengths[:, None]
    assert (canvases.tokens[answer & canvases.live] == MODEL.mask_id).all()
    prompt = ~answer
    assert 0 < (canvases.tokens[prompt] == MODEL.mask_id).mean() < 1
    assert canvases.weight.sum() == (trace().event_kind == Event.COMMIT).sum()
    # An answer that one forward commits is scored exactly.
    alone = run(threshold=1e-9)
    exact = trajectory_canvases(alone, MODEL)
    whole = masked_answers(alone, MODEL, np.random.default_rng(0), prompt_share=0.0)
    assert len(exact.tokens) == len(whole.tokens)
    scores = [np.asarray(scores_of(PARAMS, MODEL, each)).sum() for each in (exact, whole)]
    np.testing.assert_allclose(*scores, rtol=1e-5)


def test_runs_that_cannot_be_replayed_are_refused():
    settings = trace().settings
    for changes, message in (
        ({"cache": "dual"}, r"cache is 'dual'.*allowed for exact scores: 'none'"),
        ({"temperature": 0}, "temperature 0; allowed for exact scores: .* and above 0"),
        ({"remasking": "random"}, "remasking 'random' and"),
        ({"accept": "entropy_bound"}, "accept is 'entropy_bound'"),
    ):
        changed = {**settings, "sampler": {**settings["sampler"], **changes}}
        with pytest.raises(ValueError, match=message):
            trajectory_canvases(replace(trace(), settings=changed), MODEL)
    with pytest.raises(ValueError, match="prompt_share is 1; allowed: 0 to below 1"):
        masked_answers(trace(), MODEL, np.random.default_rng(0), prompt_share=1)


def test_the_batch_has_tunix_s_fields():
    canvases = pad_canvases(trajectory_canvases(trace(), MODEL), 8, 16)
    batch = token_batch(canvases)
    assert set(batch) == {"inputs", "target_ids", "loss_weights"}
    shape = batch["target_ids"].shape
    assert shape == batch["loss_weights"].shape == batch["inputs"]["tokens"].shape
    assert shape[0] % 8 == shape[1] % 16 == 0
    assert batch["loss_weights"].min() >= 0


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=4, max_size=4), min_size=1))
def test_advantages_are_standardised_within_groups(rewards):
    found = advantages(np.array(rewards))
    np.testing.assert_allclose(found.mean(axis=1), 0, atol=1e-6)
    mixed = np.array(rewards).std(axis=1) > 0
    np.testing.assert_allclose(found[mixed].std(axis=1), 1, atol=1e-5)
    assert (found[~mixed] == 0).all()


def test_a_single_update_needs_no_scores_before():
    canvases = trajectory_canvases(trace(), MODEL)
    advantage = np.arange(len(canvases.trajectory), dtype=np.float32) - 3
    slope = jax.jit(jax.grad(surrogate), static_argnums=1)
    told = scores_of(PARAMS, MODEL, canvases)
    found = slope(PARAMS, MODEL, canvases, advantage, None, 0.2)
    jax.tree.map(
        partial(np.testing.assert_allclose, atol=1e-5),
        found,
        slope(PARAMS, MODEL, canvases, advantage, told, 0.2),
    )
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(found)) > 0.1


def test_equal_rewards_change_nothing():
    canvases, adam = trajectory_canvases(trace(), MODEL), optax.adam(1e-2)
    after, _ = grpo_step(PARAMS, adam.init(PARAMS), MODEL, adam, canvases, np.zeros(4, np.float32))
    jax.tree.map(np.testing.assert_array_equal, after, PARAMS)


@pytest.mark.parametrize("estimate", ["exact", pytest.param("masked", marks=pytest.mark.slow)])
def test_steps_raise_a_reward(estimate):
    """The reward is how often an answer has the token 7."""
    params, adam, rewards = drawn_params(MODEL), optax.adam(1e-2), []
    moments = adam.init(params)
    for step in range(12):
        found = run(params, 16, step)
        answer = np.arange(found.tokens.shape[1]) >= found.prompt_lengths[:, None]
        reward = ((found.tokens == 7) & answer).sum(axis=1) / 8
        rewards.append(reward.mean())
        advantage = advantages(reward.reshape(1, -1)).reshape(-1)
        if estimate == "exact":
            canvases = trajectory_canvases(found, MODEL)
        else:
            canvases = masked_answers(found, MODEL, np.random.default_rng(step))
        config = GRPO(canvases=64, updates=2)
        params, moments = grpo_step(params, moments, MODEL, adam, canvases, advantage, config)
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.1, rewards
