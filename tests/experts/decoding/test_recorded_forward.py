"""A recorded forward is the forward, and its record is what the routers say."""

import functools

import jax
import numpy as np
import pytest

from llada_jax.experts.decoding.recording import recorded
from llada_jax.experts.routing import ABSENT, LOOK_AHEAD
from llada_jax.model.forward import LayerHooks, cache_for, forward_rows, plain_feed_forward
from llada_jax.model.moe import route, router_scores
from llada_jax.model.params import Experts
from llada_jax.model.quantize import quantize
from llada_jax.rows import make_rows
from tests.checkpoint.folders import GOLDENS, golden_forward, loaded

FAMILIES = ("llada-moe", "llada2-moe")


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
def test_it_is_the_plain_forward(family):
    config, params = model(family)
    rows = rows_of(family)
    cache = cache_for(params, config, len(rows.tokens), 0)
    out, record = recorded(params, config, rows, cache)
    plain = jax.jit(forward_rows, static_argnums=1)(params, config, rows, cache)
    np.testing.assert_allclose(out.hidden, plain.hidden, rtol=0, atol=1e-5)
    layers, taken, k = len(routed(params)), rows.tokens.size, config.moe.experts_per_token
    assert record.experts.shape == (layers, taken, k)
    assert record.scores.shape == (layers, taken, config.moe.n_experts)
    assert record.foreseen.shape == (layers, LOOK_AHEAD, taken, k)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_record_is_what_the_routers_say(family):
    config, params = model(family)
    rows = rows_of(family)
    cache = cache_for(params, config, len(rows.tokens), 0)

    @jax.jit
    def watched(params, rows, cache):
        inputs = []

        def watch(x, layer, config, index):
            if isinstance(layer.ffn, Experts):
                inputs.append(x.reshape(-1, x.shape[-1]))
            return plain_feed_forward(x, layer, config, index)

        forward_rows(params, config, rows, cache, LayerHooks(feed_forward_of=watch))
        return inputs

    inputs = watched(params, rows, cache)
    _, record = recorded(params, config, rows, cache)
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


def test_scores_are_what_experts_are_chosen_by():
    config, params = model("llada-moe")
    x = np.random.default_rng(0).standard_normal((5, config.width), np.float32)
    scores = np.asarray(jit_scores(x, params.layers[0].ffn, config.moe))
    np.testing.assert_allclose(scores.sum(axis=-1), np.ones(5), atol=1e-6)
    best = np.sort(scores, axis=-1)[:, ::-1][:, : config.moe.experts_per_token]
    weights = jit_route(x, params.layers[0].ffn, config.moe).weights
    np.testing.assert_allclose(weights, best, atol=1e-7)


def test_quantized_experts_are_recorded_too():
    config, params = model("llada-moe")
    layers = [
        layer._replace(ffn=layer.ffn._replace(gate=quantize(np.asarray(layer.ffn.gate), 8)))
        for layer in params.layers
    ]
    params = params._replace(layers=tuple(layers))
    rows = rows_of("llada-moe")
    cache = cache_for(params, config, len(rows.tokens), 0)
    out, record = recorded(params, config, rows, cache)
    plain = jax.jit(forward_rows, static_argnums=1)(params, config, rows, cache)
    np.testing.assert_allclose(out.hidden, plain.hidden, rtol=0, atol=1e-5)
    assert np.asarray(record.scores).shape == (3, rows.tokens.size, 8)
