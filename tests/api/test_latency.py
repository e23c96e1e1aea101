"""Timing for a table: the last rows of a canvas run and are all scored, in turns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.api import latency
from llada_jax.config import ModelConfig
from llada_jax.types import Denoiser, KVCache, RowsOut, Scores

MODEL = lj.Model(
    ModelConfig(
        family="llada", vocab_size=5, width=8, n_layers=1, n_heads=1, n_kv_heads=1, head_dim=8,
        ffn_width=8, rope_theta=1e4, norm_eps=1e-5, max_length=16,
    ),
    None,
    None,
)  # fmt: skip


def fake(forwards: list, scored: list, score: float = 0.0) -> Denoiser:
    """Records its requests, and gives every position the same score."""

    def forward_rows(params, rows, cache):
        forwards.append(jax.tree.map(np.asarray, rows))
        hidden = jnp.zeros((*rows.tokens.shape, 1))
        return RowsOut(hidden, (hidden,), (hidden,))

    def score_rows(params, hidden, noise_keys):
        scored.append(hidden.shape[1])
        return Scores(*(jnp.full(hidden.shape[:2], score) for _ in Scores._fields))  # pyright: ignore

    def empty_cache(params, batch, length):
        empty = (jnp.zeros((batch, 0, length, 0)),)
        return KVCache(empty, empty)

    return Denoiser(forward_rows, score_rows, empty_cache, traceable=False)


def test_every_bucket_runs_the_last_rows_and_scores_them(monkeypatch):
    forwards, scored = [], []
    monkeypatch.setattr(latency, "backend_denoiser", lambda *_: fake(forwards, scored))
    table = lj.latency_table(MODEL, (4, 16), canvas=16, repeats=2)
    assert table.rows == (4, 16) and len(table.ms) == 2
    assert scored == [4, 16] * 3, "once to compile, and then in turns"
    few, all_ = forwards[:2]
    assert few.positions.tolist() == [[12, 13, 14, 15]] and few.live.all()
    assert few.tokens.tolist() == [[2, 3, 4, 0]]
    np.testing.assert_array_equal(few.sees_cache[0], np.tile(np.arange(16) < 12, (4, 1)))
    assert not all_.sees_cache.any() and all_.sees_rows.all()


def test_a_model_without_numbers_has_no_time(monkeypatch):
    monkeypatch.setattr(latency, "backend_denoiser", lambda *_: fake([], [], np.nan))
    with pytest.raises(FloatingPointError, match="confidence in 4 rows: NaN or infinite"):
        lj.latency_table(MODEL, (4,), canvas=16, repeats=2)
