"""What is timed for a table: the last rows of a canvas, all of them scored, in turns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llada_jax.backend.latency import time_steps
from llada_jax.types import Denoiser, KVCache, RowsOut, Scores


def fake(forwards: list, scored: list, score: float = 0.0) -> Denoiser:
    """Takes down what it is asked, and gives every position one score."""

    def forward_rows(params, rows, cache):
        forwards.append(jax.tree.map(np.asarray, rows))
        hidden = jnp.zeros((*rows.tokens.shape, 1))
        return RowsOut(hidden, hidden, hidden)

    def score_rows(params, hidden, noise_keys):
        scored.append(hidden.shape[1])
        return Scores(*(jnp.full(hidden.shape[:2], score) for _ in Scores._fields))  # pyright: ignore

    def empty_cache(params, batch, length):
        empty = jnp.zeros((0, batch, length, 0, 0))
        return KVCache(empty, empty)

    return Denoiser(forward_rows, score_rows, empty_cache, traceable=False)


def test_every_bucket_runs_the_last_rows_and_scores_them():
    forwards, scored = [], []
    denoiser = fake(forwards, scored)
    table = time_steps(denoiser, None, (4, 16), canvas=16, vocab_size=5, repeats=2)
    assert table.rows == (4, 16) and len(table.ms) == 2
    assert scored == [4, 16] * 3, "once to compile, and then in turns"
    few, all_ = forwards[:2]
    assert few.positions.tolist() == [[12, 13, 14, 15]] and few.live.all()
    assert few.tokens.tolist() == [[2, 3, 4, 0]]
    np.testing.assert_array_equal(few.sees_cache[0], np.tile(np.arange(16) < 12, (4, 1)))
    assert not all_.sees_cache.any() and all_.sees_rows.all()


def test_a_model_without_numbers_has_no_time():
    with pytest.raises(FloatingPointError, match="confidence in 4 rows: NaN or infinite"):
        time_steps(fake([], [], np.nan), None, (4,), canvas=16, vocab_size=5, repeats=2)
