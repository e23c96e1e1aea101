"""The model against the results of the public PyTorch implementations."""

import functools
from typing import NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from llada_jax.config import ModelConfig
from llada_jax.model.forward import attention_order, cache_for, forward_rows
from llada_jax.model.head import logits_of
from llada_jax.model.params import ModelParams
from llada_jax.rows import make_rows, write_rows
from llada_jax.types import KVCache, RowsOut
from tests.checkpoint.folders import (
    FAMILIES,
    GOLDENS,
    NEW_FAMILIES,
    TOLERANCE,
    golden_forward,
    loaded,
)

N_DEAD = 3


class Canvas(NamedTuple):
    """One golden canvas after a full forward that filled the cache."""

    config: ModelConfig
    params: ModelParams
    tokens: np.ndarray
    expected: np.ndarray
    full: RowsOut
    logits: np.ndarray
    cache: KVCache


@functools.cache
def full_forward(family: str) -> Canvas:
    config, params = loaded(GOLDENS / family, "float32")
    tokens, expected, block_length = golden_forward(family)
    if family != "llada2-moe":  # its golden has another block length than its releases
        assert config.block_length == block_length
    config = config.replace(block_length=block_length)
    batch, length = tokens.shape
    positions = np.tile(np.arange(length, dtype=np.int32), (batch, 1))
    live = np.ones(tokens.shape, bool)
    nothing = np.zeros(tokens.shape, bool)
    order = attention_order(config, tokens, positions)
    empty = cache_for(params, config, batch, length)
    result = run_rows(params, config, tokens, positions, live, nothing, (order, order), empty)
    return Canvas(config, params, tokens, expected, *result)


def block_order(config: ModelConfig, positions: np.ndarray) -> np.ndarray | None:
    return None if config.block_length is None else positions // config.block_length


@functools.partial(jax.jit, static_argnums=1)
def run_rows(params, config, tokens, positions, live, cached, orders, cache):
    """Runs rows; returns their outputs, their logits, and the cache with them."""
    rows = make_rows(tokens, positions, live, cached, *orders)
    out = forward_rows(params, config, rows, cache)
    return out, logits_of(params, out.hidden), write_rows(cache, rows, out)


@pytest.mark.parametrize("family", (*FAMILIES, *NEW_FAMILIES))
def test_forward_agrees_with_pytorch(family: str) -> None:
    canvas = full_forward(family)
    assert canvas.logits.dtype == np.float32
    assert_close(canvas.logits, canvas.expected)


@pytest.mark.parametrize(
    "family",
    [
        "llada-mha",
        "llada2-moe",  # a mixture with causal blocks and grouped queries
        *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES[1:3] + FAMILIES[4:]),
    ],
)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_rows_against_a_warm_cache_give_the_full_forward(
    family: str, data: st.DataObject
) -> None:
    canvas = full_forward(family)
    batch, length = canvas.tokens.shape
    fresh = [draw_rows(data, length) for _ in range(batch)]
    n_rows = length + N_DEAD
    live = np.array([[index < len(rows) for index in range(n_rows)] for rows in fresh])
    dead_positions = data.draw(st.lists(st.integers(0, length - 1), min_size=n_rows,
                                        max_size=n_rows), "dead rows")  # fmt: skip
    positions = np.array([rows + dead_positions[len(rows) :] for rows in fresh], np.int32)
    tokens = np.where(live, np.take_along_axis(canvas.tokens, positions, axis=1), 7)

    cached = np.ones((batch, length), bool)
    slots = np.tile(np.arange(length, dtype=np.int32), (batch, 1))
    orders = tuple(block_order(canvas.config, p) for p in (positions, slots))
    out, found, rewritten = run_rows(
        canvas.params, canvas.config, tokens, positions, live, cached, orders, canvas.cache
    )
    out, found, full = jax.tree.map(np.asarray, (out, found, canvas.full))
    for b, chosen in enumerate(fresh):
        count = len(chosen)
        assert_close(found[b, :count], canvas.expected[b, chosen])
        assert_close(out.hidden[b, :count], full.hidden[b, chosen])
        for part, expected in zip(out.keys + out.values, full.keys + full.values, strict=True):
            assert_close(part[b, :count], expected[b, chosen])
    jax.tree.map(assert_close, rewritten, canvas.cache)


def draw_rows(data: st.DataObject, length: int) -> list[int]:
    """Some positions, in any order."""
    order = data.draw(st.permutations(range(length)), "order")
    return list(order[: data.draw(st.integers(1, length), "rows")])


def assert_close(found: ArrayLike, expected: ArrayLike) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_a_dead_row_leaves_the_cache_alone() -> None:
    canvas = full_forward("llada-mha")
    batch, length = canvas.tokens.shape
    tokens, positions = canvas.tokens[:, :2], np.zeros((batch, 2), np.int32)
    dead, cached = np.zeros((batch, 2), bool), np.ones((batch, length), bool)
    _, _, written = run_rows(
        canvas.params, canvas.config, tokens, positions, dead, cached, (None, None), canvas.cache
    )
    np.testing.assert_array_equal(written.keys, canvas.cache.keys)
    np.testing.assert_array_equal(written.values, canvas.cache.values)
