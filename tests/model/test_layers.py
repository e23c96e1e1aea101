"""Attention: block by block and in a fused kernel as at once, and the memory that it needs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.model import layers
from llada_jax.model.architecture import architecture
from llada_jax.model.forward import cache_for, forward_rows
from llada_jax.model.layers import (
    CachedLayer,
    attend,
    attend_in_blocks,
    attend_in_cudnn,
    attend_in_kernel,
)
from llada_jax.model.params import FeedForward, init_params
from llada_jax.types import Rows

CASES = [(7, 10, 2), (7, 0, 4), (3, 4, 4), (1, 9, 1)]
"""Rows, cached positions, and key heads of 4 heads."""


def drawn(seed, dtype, n_rows, cached, kv_heads):
    """A query, keys and values, random masks, and a cache, for two sequences."""
    rng = np.random.default_rng(seed)

    def array(*shape):
        return jnp.asarray(rng.standard_normal(shape), dtype)

    fresh = array(2, n_rows, kv_heads, 8), array(2, n_rows, kv_heads, 8)
    old = CachedLayer(array(2, kv_heads, cached, 8), array(2, kv_heads, cached, 8), 0)
    sees = [jnp.asarray(rng.random((2, n_rows, n)) < rng.random()) for n in (cached, n_rows)]
    return array(2, n_rows, 4, 8), fresh, tuple(sees), old


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(layers, "ROW_BLOCK", 3)
    monkeypatch.setattr(layers, "KEY_BLOCK", 4)


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_blocks_match_all_scores_at_once(small_blocks, case, alike):
    """With masks of any density; a row that sees nothing gets any finite value."""
    ours, blocks = (jax.jit(partial(f, alike=alike)) for f in (attend, attend_in_blocks))
    for seed in range(8):
        query, fresh, visible, cached = drawn(seed, "float32", *case)
        sees = np.concatenate(visible, axis=-1).any(axis=-1)
        out = blocks(query, fresh, visible, cached)
        assert np.isfinite(out).all()
        expected = ours(query, fresh, visible, cached)
        np.testing.assert_allclose(out[sees], expected[sees], rtol=1e-5, atol=1e-6)


def test_gradients_pass_through_blocks(small_blocks):
    query, fresh, visible, cached = drawn(0, "float32", 7, 10, 2)

    def loss(attend_with, query, fresh, cached):
        sees = jnp.concatenate(visible, axis=-1).any(axis=-1)[..., None]
        out = attend_with(query, fresh, visible, cached)
        return jnp.sum(jnp.where(sees, out, 0) ** 2)

    ours, blocks = (
        jax.jit(jax.grad(partial(loss, f), argnums=(0, 1)))(query, fresh, cached)
        for f in (attend, attend_in_blocks)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), blocks, ours)


def test_positions_that_no_row_sees_are_not_read(small_blocks):
    query, fresh, (sees_cache, sees_rows), cached = drawn(0, "float32", 7, 12, 2)
    visible = sees_cache.at[:, :, 4:].set(False), sees_rows
    unset = CachedLayer(*(part.at[:, :, 4:].set(jnp.nan) for part in cached[:2]), 0)
    out = jax.jit(attend_in_blocks)(query, fresh, visible, unset)
    assert np.isfinite(out).all()


@pytest.mark.parametrize(("dtype", "within"), [("float32", 1e-5), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize(
    ("kernel", "sizes"),
    [
        (partial(attend_in_cudnn, implementation="xla"), (5, 6)),
        (partial(attend_in_kernel, interpret=True), (17, 70)),
    ],
    ids=["cudnn", "ours"],
)
def test_kernels_of_a_gpu_compute_the_same(dtype, within, kv_heads, kernel, sizes):
    query, fresh, visible, cached = drawn(0, dtype, *sizes, kv_heads)
    visible = visible[0].at[:, :, 0].set(True), visible[1]
    ours, theirs = (jax.jit(f)(query, fresh, visible, cached) for f in (attend, kernel))
    assert theirs.dtype == ours.dtype and theirs.shape == ours.shape
    np.testing.assert_allclose(*(np.float32(each) for each in (theirs, ours)), atol=within)


def test_the_first_forward_of_a_long_canvas_needs_no_memory_for_scores():
    """All scores of one layer would be 512 MiB: of 4096 rows with the cache and each other."""
    shape = architecture("tiny").replace(n_layers=1, n_heads=4, n_kv_heads=4, max_length=4096)
    params = jax.eval_shape(partial(init_params, shape), jax.random.key(0))
    row = jax.ShapeDtypeStruct((1, 4096), jnp.int32)
    sees = jax.ShapeDtypeStruct((1, 4096, 4096), bool)
    rows = Rows(row, row, jax.ShapeDtypeStruct((1, 4096), bool), sees, sees)
    cache = jax.eval_shape(lambda params: cache_for(params, shape, 1, 4096), params)
    forward = jax.jit(forward_rows, static_argnums=1)
    memory = forward.lower(params, shape, rows, cache).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 64 << 20


@pytest.mark.skipif(
    jax.__version_info__ < (0, 12), reason="XLA of older JAX drops the barrier before it fuses"
)
def test_the_gradient_of_the_gate_is_not_computed_in_a_transpose(monkeypatch):
    """XLA fuses it into one that reads four arrays column by column, if it may."""
    weights = FeedForward(*(jnp.ones(shape) for shape in ((96, 32), (96, 32), (32, 96))))

    def transposes() -> int:
        grad = jax.grad(lambda x, weights: layers.feed_forward(x, weights).sum(), argnums=(0, 1))
        compiled = jax.jit(grad).lower(jnp.ones((4, 64, 32)), weights).compile().as_text()
        bodies = compiled.split("\n\n")  # of fusions, the program and its header
        fused = [body for body in bodies if not body.startswith("ENTRY")]
        return sum(" transpose(" in body and " subtract(" in body for body in fused)

    assert transposes() == 0
    monkeypatch.setattr(layers, "_stored_gradient", lambda x: x)
    assert transposes() > 0, "XLA does so no longer"
