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
    rows = make_rows(tokens, positions, live, nothing, order, order)
    empty = cache_for(params, config, batch, length)
    full = run_rows(params, config, rows, empty)
    return Canvas(config, params, tokens, expected, full, write(empty, rows, full))


def block_order(config: ModelConfig, positions: np.ndarray) -> np.ndarray | None:
    return None if config.block_length is None else positions // config.block_length


run_rows = jax.jit(forward_rows, static_argnums=1)
rows_logits = jax.jit(logits_of)
write = jax.jit(write_rows)


@pytest.mark.parametrize("family", (*FAMILIES, *NEW_FAMILIES))
def test_forward_agrees_with_pytorch(family: str) -> None:
    canvas = full_forward(family)
    found = np.asarray(rows_logits(canvas.params, canvas.full.hidden))
    assert found.dtype == np.float32
    assert_close(found, canvas.expected)


@pytest.mark.parametrize("family", FAMILIES)
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
    row_order, slot_order = (block_order(canvas.config, p) for p in (positions, slots))
    rows = make_rows(tokens, positions, live, cached, row_order, slot_order)
    out = run_rows(canvas.params, canvas.config, rows, canvas.cache)
    rewritten = write(canvas.cache, rows, out)

    found = np.asarray(rows_logits(canvas.params, out.hidden))
    out, full = jax.tree.map(np.asarray, (out, canvas.full))
    for b, chosen in enumerate(fresh):
        count = len(chosen)
        assert_close(found[b, :count], canvas.expected[b, chosen])
        assert_close(out.hidden[b, :count], full.hidden[b, chosen])
        assert_close(out.keys[:, b, :count], full.keys[:, b, chosen])
        assert_close(out.values[:, b, :count], full.values[:, b, chosen])
    assert_close(rewritten.keys, canvas.cache.keys)
    assert_close(rewritten.values, canvas.cache.values)


def draw_rows(data: st.DataObject, length: int) -> list[int]:
    """Some positions, in any order."""
    order = data.draw(st.permutations(range(length)), "order")
    return list(order[: data.draw(st.integers(1, length), "rows")])


def assert_close(found: ArrayLike, expected: ArrayLike) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_a_dead_row_leaves_the_cache_alone() -> None:
    canvas = full_forward("llada-mha")
    batch, length = canvas.tokens.shape
    dead = np.zeros((batch, 2), bool)
    positions = np.zeros((batch, 2), np.int32)
    rows = make_rows(canvas.tokens[:, :2], positions, dead, np.ones((batch, length), bool))
    out = run_rows(canvas.params, canvas.config, rows, canvas.cache)
    written = write(canvas.cache, rows, out)
    np.testing.assert_array_equal(written.keys, canvas.cache.keys)
    np.testing.assert_array_equal(written.values, canvas.cache.values)
