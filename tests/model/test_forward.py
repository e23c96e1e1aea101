"""The layers of a forward: ways to run them, and their lowered program."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.model.architecture import architecture
from llada_jax.model.forward import (
    cache_for,
    feed_forward_half,
    forward,
    forward_rows,
    run_layer,
    shared_layer,
)
from llada_jax.model.params import Experts
from llada_jax.rows import make_rows
from llada_jax.types import KVCache
from tests.drawn_params import drawn_params

DENSE = architecture("tiny").replace(n_layers=3, vocab_size=64, mask_id=None, eos_id=None,
                                     eot_id=None, pad_id=None)  # fmt: skip
MIXTURE = architecture("tiny_moe").replace(n_layers=3, vocab_size=64, mask_id=None, eos_id=None,
                                           eot_id=None, pad_id=None)  # fmt: skip
TOKENS = jnp.arange(10, dtype=jnp.int32).reshape(2, 5)


def cached_rows(config):
    """Rows at positions 4 to 8 that see 4 cached positions, and the cache."""
    params = drawn_params(config)
    positions = jnp.tile(jnp.arange(4, 9, dtype=jnp.int32), (2, 1))
    rows = make_rows(TOKENS, positions, jnp.ones((2, 5), bool), jnp.arange(9)[None] < 4)
    cache = cache_for(params, config, 2, 9)
    keys = iter(jax.random.split(jax.random.key(0), 2 * config.n_layers))
    drawn = jax.tree.map(lambda part: jax.random.normal(next(keys), part.shape), cache)
    return params, rows, drawn


@pytest.mark.parametrize(
    "config", [pytest.param(DENSE, id="dense", marks=pytest.mark.slow), MIXTURE]
)
def test_all_ways_to_run_layers_give_the_same(config):
    params, rows, cache = cached_rows(config)
    seen = []

    def one_by_one(layer, config, *inputs):
        seen.append(inputs[-1].index)
        return shared_layer(layer, config, *inputs)

    expected = jax.jit(forward_rows, static_argnums=1)(params, config, rows, cache)
    for run in (run_layer, one_by_one):
        found = jax.jit(partial(forward_rows, run=run), static_argnums=1)
        jax.tree.map(
            partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5),
            found(params, config, rows, cache),
            expected,
        )
    assert seen == [0, 1, 2], "a custom function sees each layer's number, in order"


def test_each_layer_reads_its_own_cache():
    params, rows, cache = cached_rows(DENSE)
    run = jax.jit(forward_rows, static_argnums=1)
    plain = run(params, DENSE, rows, cache)
    for layer in range(3):
        values = [part + float(index == layer) for index, part in enumerate(cache.values)]
        changed = KVCache(cache.keys, tuple(values))
        found = run(params, DENSE, rows, changed)
        differs = [bool((a != b).any()) for a, b in zip(found.values, plain.values, strict=True)]
        assert differs == [later > layer for later in range(3)]


def test_the_feed_forward_half_can_be_replaced():
    params = drawn_params(MIXTURE)
    routed = []

    def counted(x, weights, config):
        routed.append(isinstance(weights, Experts))
        return feed_forward_half(x, weights, config)

    found, expected = (
        jax.jit(partial(forward, **options), static_argnums=1)(params, MIXTURE, TOKENS)
        for options in ({"run": partial(run_layer, ffn=counted)}, {})
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    first = MIXTURE.moe.first_layer
    assert routed == [False] * first + [True] * (3 - first)


def test_equal_layers_are_one_function_of_the_lowered_program():
    config = DENSE.replace(n_layers=12)
    params = drawn_params(config)
    program = jax.jit(forward, static_argnums=1).lower(params, config, TOKENS).as_text()
    assert len(re.findall(r"func\.func private @run_layer", program)) == 1
    assert len(re.findall(r"call @run_layer", program)) == 12


def test_a_gradient_passes_through_the_layers():
    params = drawn_params(DENSE)

    def loss(params):
        return jnp.square(forward(params, DENSE, TOKENS)).mean()

    gradient = jax.jit(jax.grad(loss))(params)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradient))
    assert all(bool((leaf != 0).any()) for leaf in jax.tree.leaves(gradient.layers))
