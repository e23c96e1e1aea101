"""A recorded forward is the forward; forwards put together are a trace, or are refused."""

import functools

import jax
import numpy as np
import pytest

from llada_jax.experts.decoding.recording import (
    RoutingRecord,
    changed_rows,
    forward_with_routing,
    trace_of_steps,
)
from llada_jax.experts.routing import ABSENT, LOOK_AHEAD
from llada_jax.model.forward import cache_for, feed_forward_half, forward_rows, run_layer
from llada_jax.model.moe import route, router_scores
from llada_jax.model.params import Experts
from llada_jax.model.quantize import quantize
from llada_jax.rows import make_rows
from llada_jax.types import Rows
from tests.checkpoint.folders import GOLDENS, golden_forward, loaded


def step(tokens, positions, live=None, scores=None):
    """A forward of one layer with four experts; row i takes experts i and i + 1."""
    tokens, positions = np.array([tokens]), np.array([positions])
    rows = tokens.size
    experts = np.stack([np.arange(rows) % 4, (np.arange(rows) + 1) % 4], axis=-1)[None]
    scores = np.full((1, rows, 4), 0.25) if scores is None else scores
    live = np.ones(tokens.shape, bool) if live is None else np.array([live])
    return (
        RoutingRecord(experts, scores, np.full((1, 3, rows, 2), -1)),
        Rows(tokens, positions, live, np.zeros((1, rows, 0), bool), np.eye(rows, dtype=bool)[None]),
    )


def changed(now, before):
    return changed_rows(now[1], before and before[1])


def trace(*steps, current, block_length=2):
    return trace_of_steps(
        steps,
        current_block=np.array(current)[:, None],
        committed=np.ones(len(steps), int),
        origin=np.array([4]),
        block_length=block_length,
        settings={},
    )


def test_a_row_is_repeated_if_position_and_token_are_equal():
    before = step([9, 9, 5], [4, 5, 6])
    assert changed(step([9, 7, 5], [4, 5, 6]), before).tolist() == [False, True, False]
    assert changed(step([9, 9, 5], [4, 6, 6]), before).tolist() == [False, True, False]
    assert changed(step([9, 9], [4, 5]), before).all()
    assert changed(before, None).all()
    dead = step([9, 9, 5], [4, 5, 6], live=[True, False, True])
    assert changed(dead, before).tolist() == [False, True, False]


def test_forwards_of_different_sizes_share_a_trace():
    prompt = step([1, 2, 3, 4, 9, 9], [0, 1, 2, 3, 4, 5])
    block = step([9, 8], [4, 5])
    made = trace(prompt, block, current=[0, 0])
    assert made.experts.shape == (2, 1, 6, 2)
    assert (made.experts[1, :, 2:] == -1).all() and made.n_experts == 4
    np.testing.assert_array_equal(made.loads[1, 0], [1, 2, 1, 0])
    np.testing.assert_array_equal(made.block, np.zeros((2, 6)))


def test_dead_rows_have_no_experts_and_no_score():
    scores = np.full((1, 3, 4), 0.25)
    scores[0, 2] = 100.0
    made = trace(step([9, 9, 0], [4, 5, 0], [True, True, False], scores), current=[0])
    np.testing.assert_array_equal(made.loads[0, 0], [1, 2, 1, 0])
    np.testing.assert_allclose(made.scores, 0.25)


def test_rows_after_the_current_block_are_drafts():
    made = trace(step([9, 9, 9, 9], [6, 7, 8, 9]), step([5, 5, 9, 9], [4, 5, 6, 7]), current=[1, 1])
    np.testing.assert_array_equal(made.block, [[1, 1, 2, 2], [1, 1, 1, 1]])


def test_bad_recordings_are_refused():
    nan = np.full((1, 2, 4), np.nan)
    with pytest.raises(ValueError, match="scores has 4 values that are NaN or infinite"):
        trace(step([9, 9], [4, 5], scores=nan), current=[0])


FAMILIES = (pytest.param("llada-moe", marks=pytest.mark.slow), "llada2-moe")


@functools.cache
def model(family):
    return loaded(GOLDENS / family, "float32")


def rows_of(family):
    tokens, _, _ = golden_forward(family)
    positions = np.tile(np.arange(tokens.shape[1], dtype=np.int32), (len(tokens), 1))
    return make_rows(
        tokens, positions, np.ones(tokens.shape, bool), np.zeros((len(tokens), 0), bool)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_recorded_forward_matches_the_plain_one(family):
    config, params = model(family)
    rows = rows_of(family)
    cache = cache_for(params, config, len(rows.tokens), 0)
    out, record = forward_with_routing(params, config, rows, cache)
    plain = jax.jit(forward_rows, static_argnums=1)(params, config, rows, cache)
    np.testing.assert_allclose(out.hidden, plain.hidden, rtol=0, atol=1e-5)
    layers, taken, k = len(routed(params)), rows.tokens.size, config.moe.experts_per_token
    assert record.experts.shape == (layers, taken, k)
    assert record.scores.shape == (layers, taken, config.moe.n_experts)
    assert record.foreseen.shape == (layers, LOOK_AHEAD, taken, k)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_record_matches_the_routers(family):
    config, params = model(family)
    rows = rows_of(family)
    cache = cache_for(params, config, len(rows.tokens), 0)

    @jax.jit
    def watched(params, rows, cache):
        inputs = []

        def watch(x, weights, config):
            if isinstance(weights, Experts):
                inputs.append(x.reshape(-1, x.shape[-1]))
            return feed_forward_half(x, weights, config)

        forward_rows(params, config, rows, cache, functools.partial(run_layer, ffn=watch))
        return inputs

    inputs = watched(params, rows, cache)
    _, record = forward_with_routing(params, config, rows, cache)
    experts = routed(params)
    for index, (x, mine) in enumerate(zip(inputs, experts, strict=True)):
        np.testing.assert_array_equal(record.experts[index], jit_route(x, mine, config.moe).experts)
        scores = jit_scores(x, mine, config.moe)
        np.testing.assert_allclose(record.scores[index], scores, atol=1e-5)
        for ahead in range(1, LOOK_AHEAD + 1):
            seen = record.foreseen[index, ahead - 1]
            if index + ahead < len(experts):
                expected = jit_route(x, experts[index + ahead], config.moe).experts
                np.testing.assert_array_equal(seen, expected)
            else:
                assert (seen == ABSENT).all()


jit_route = jax.jit(route, static_argnums=2)
jit_scores = jax.jit(router_scores, static_argnums=2)


def routed(params):
    return [layer.ffn for layer in params.layers if isinstance(layer.ffn, Experts)]


def test_the_experts_with_the_highest_scores_are_chosen():
    config, params = model("llada-moe")
    x = np.random.default_rng(0).standard_normal((5, config.width), np.float32)
    scores = np.asarray(jit_scores(x, params.layers[0].ffn, config.moe))
    np.testing.assert_allclose(scores.sum(axis=-1), np.ones(5), atol=1e-6)
    best = np.sort(scores, axis=-1)[:, ::-1][:, : config.moe.experts_per_token]
    weights = jit_route(x, params.layers[0].ffn, config.moe).weights
    np.testing.assert_allclose(weights, best, atol=1e-7)


def test_quantized_experts_are_recorded():
    config, params = model("llada-moe")
    layers = [
        layer._replace(ffn=layer.ffn._replace(gate=quantize(np.asarray(layer.ffn.gate), 8)))
        for layer in params.layers
    ]
    params = params._replace(layers=tuple(layers))
    rows = rows_of("llada-moe")
    cache = cache_for(params, config, len(rows.tokens), 0)
    out, record = forward_with_routing(params, config, rows, cache)
    plain = jax.jit(forward_rows, static_argnums=1)(params, config, rows, cache)
    np.testing.assert_allclose(out.hidden, plain.hidden, rtol=0, atol=1e-5)
    assert np.asarray(record.scores).shape == (3, rows.tokens.size, 8)
