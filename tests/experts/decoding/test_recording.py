"""Forwards put together as a trace: padding, repeated rows, drafts, and what is refused."""

import numpy as np
import pytest

from llada_jax.experts.decoding.recording import RoutingRecord, changed_rows, trace_of_steps
from llada_jax.types import Rows


def step(tokens, positions, live=None, scores=None):
    """A forward of one layer, four experts, of which row i takes i and i + 1."""
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


def test_a_row_repeats_where_position_and_token_are_the_same():
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


def test_dead_rows_take_no_experts_and_have_no_score():
    scores = np.full((1, 3, 4), 0.25)
    scores[0, 2] = 100.0
    made = trace(step([9, 9, 0], [4, 5, 0], [True, True, False], scores), current=[0])
    np.testing.assert_array_equal(made.loads[0, 0], [1, 2, 1, 0])
    np.testing.assert_allclose(made.scores, 0.25)


def test_rows_after_the_current_block_are_drafts():
    made = trace(step([9, 9, 9, 9], [6, 7, 8, 9]), step([5, 5, 9, 9], [4, 5, 6, 7]), current=[1, 1])
    np.testing.assert_array_equal(made.block, [[1, 1, 2, 2], [1, 1, 1, 1]])


def test_bad_recordings():
    nan = np.full((1, 2, 4), np.nan)
    with pytest.raises(ValueError, match="scores has 4 values that are NaN or infinite"):
        trace(step([9, 9], [4, 5], scores=nan), current=[0])
