"""Generated traces have the statistics that they were made for, and some that they were not."""

import dataclasses

import numpy as np
import pytest

from llada_jax.experts.routing import experts_per_step, imbalance, step_similarity
from llada_jax.experts.shapes import LLADA2_MINI, LLADA_MOE, MIXTRAL
from llada_jax.experts.synthetic import (
    GATE_AHEAD,
    STATISTICS,
    RoutingStatistics,
    decoding_trace,
    denoising_trace,
    prefill_trace,
)
from tests.experts.traces import SMALL, small_trace


@pytest.fixture(scope="module")
def mini():
    few_layers = dataclasses.replace(LLADA2_MINI, n_layers=6)
    return denoising_trace(
        few_layers, STATISTICS["llada2_mini"], seed=5, blocks=8, tokens_per_step=2.55
    )


def test_llada2_mini_has_its_published_statistics(mini):
    assert experts_per_step(mini) == pytest.approx(69.5, rel=0.05)
    assert step_similarity(mini) == pytest.approx(0.985, abs=0.003)


def test_llada2_mini_five_steps_apart_was_not_fitted(mini):
    """More than 0.95 (TIDE), and histograms from some 45 to 90 experts (dMoE)."""
    assert step_similarity(mini, lag=5) > 0.95
    counts = (mini.loads > 0).sum(axis=-1)
    assert 40 <= np.percentile(counts, 1) and np.percentile(counts, 99) <= 95


def test_llada_moe_is_as_unbalanced_as_published():
    statistics = dataclasses.replace(STATISTICS["llada_moe"], topic_keeps=1.0)
    prompt = prefill_trace(LLADA_MOE, statistics, seed=2, prompts=1, tokens=352)
    assert 2.5 <= imbalance(prompt).min() and imbalance(prompt).max() <= 6.5
    assert (prompt.loads > 0).mean() > 0.98


def test_tokens_per_step():
    trace = small_trace(blocks=30)
    assert trace.committed.sum() == 30 * 8
    assert trace.committed.mean() == pytest.approx(1.5, rel=0.15)


def test_rows_keep_their_experts_until_their_token_changes():
    trace = small_trace(jitter=0.0)
    same = (trace.experts[1:] == trace.experts[:-1]).all(axis=(1, 3))
    kept = ~trace.changed[1:]
    assert kept.any() and same[kept].all()
    assert not same[~kept].any()


def test_gates_predict_as_often_as_published():
    trace = decoding_trace(MIXTRAL, STATISTICS["mixtral"], seed=0, tokens=40)
    for ahead in (1, 2):
        seen = trace.foreseen[:, :-ahead, ahead - 1]
        true = trace.experts[:, ahead:]
        found = (seen[..., :, None] == true[..., None, :]).any(axis=-1).mean()
        assert found == pytest.approx(GATE_AHEAD**ahead, abs=0.03)
    assert (trace.foreseen[:, -1] == -1).all()


def test_seeds_repeat():
    one, same, other = small_trace(seed=3), small_trace(seed=3), small_trace(seed=4)
    np.testing.assert_array_equal(one.experts, same.experts)
    assert one.experts.shape != other.experts.shape or (one.experts != other.experts).any()


def test_bad_statistics_are_refused():
    with pytest.raises(ValueError, match=r"popular \+ topic \+ jitter is 1\.2; allowed: up to 1"):
        RoutingStatistics(popular=0.6, topic=0.6)
    with pytest.raises(ValueError, match=r"topic is -0\.1; allowed: 0 or more, up to 1"):
        RoutingStatistics(popular=0.6, topic=-0.1)
    statistics = RoutingStatistics(popular=0.1, topic=0.1)
    with pytest.raises(ValueError, match=r"tokens_per_step is 9; allowed: 1 to block_length \(8\)"):
        denoising_trace(SMALL, statistics, seed=0, blocks=1, block_length=8, tokens_per_step=9)
    with pytest.raises(ValueError, match="tokens is 0; allowed: 1 or more"):
        decoding_trace(SMALL, statistics, seed=0, tokens=0)
