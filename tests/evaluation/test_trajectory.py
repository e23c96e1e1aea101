"""Trajectories: a script with numbers counted by hand, and invariants of every trace."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.evaluation.trajectory import PUBLISHED, UNITS, Trajectory, regime
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.generate import decode
from llada_jax.sampler.prompts import with_ids
from llada_jax.sampler.trace import Trace
from tests.sampler.scripted import Scripted
from tests.sampler.toy import CONFIG, toy_decode

PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7]]
BLOCKWISE = SamplerConfig.from_flat(
    gen_length=24, block_length=8, steps=24, cache="blockwise", threshold=0.3
)  # fmt: skip
STAGED = BLOCKWISE.replace(
    accept="staged", threshold=None, theta_visible=0.2, theta_stable=0.3, refresh="none"
)


def told(sure_from=(0, 1, 0, 2, 3, 4), **changes) -> Trace:
    """Two blocks of three after a prompt of three: 3 and 5 at once, then 4; then 6, 7 and 8, one
    forward each."""

    def script(forward, position, masked):
        confidence = 0.6 if position == 5 and forward < 3 else 0.9
        return position, confidence if forward >= sure_from[position - 3] else 0.1

    config = SamplerConfig.from_flat(
        gen_length=6, block_length=3, steps=6, cache="blockwise", **{"threshold": 0.5, **changes}
    )  # fmt: skip
    config = with_ids(config, CONFIG)
    scripted = Scripted(script)
    trace = decode(
        scripted.denoiser(), None, CONFIG, [[0, 1, 2]], config, loop="host", trace=True
    ).trace
    assert trace is not None
    return trace


STAGED_STORY = {
    "threshold": None, "accept": "staged", "theta_visible": 0.5, "theta_stable": 0.8,
    "refresh": "none",
}  # fmt: skip


def test_a_small_trace_counted_by_hand():
    found = Trajectory(told(), np.array([6]))
    assert found.masks_left[:, 0].tolist() == [3, 1, 3, 2, 1]
    np.testing.assert_allclose(found.commit_frontier(), [1, 2, 2])
    np.testing.assert_allclose(found.tail_shares(3), [2 / 5, 3 / 5, 1])
    np.testing.assert_allclose(found.below_at_block_end(0.8), [1 / 3, 0])
    np.testing.assert_allclose(found.skippable_shares(), [(0 + 2 + 0 + 1 + 2) / 15])


def test_padding_does_not_count():
    found = Trajectory(told(), np.array([2]))
    np.testing.assert_array_equal(found.commit_frontier(), [1, 2, np.nan])
    np.testing.assert_allclose(found.tail_shares(3), [1 / 2, 1 / 2, 1])
    np.testing.assert_allclose(found.below_at_block_end(0.95), [1])
    np.testing.assert_allclose(found.skippable_shares(), [2 / 6])


def test_visible_tokens_are_open_decisions():
    """5 stays visible until its block is finished, and is frozen then."""
    found = Trajectory(told(**STAGED_STORY), np.array([6]))
    assert found.open_decisions[:, 0].tolist() == [3, 2, 3, 2, 1]
    np.testing.assert_allclose(found.below_at_block_end(0.8), [1 / 3, 0])


def test_a_token_promoted_in_time_is_not_below():
    def script(forward, position, masked):
        return position, 0.6 if forward == 0 and position > 3 else 0.9 if forward else 0.1

    config = with_ids(
        SamplerConfig.from_flat(gen_length=3, block_length=3, steps=3, cache="blockwise", **{
            key: value for key, value in STAGED_STORY.items() if key != "threshold"
        }),
        CONFIG,
    )  # fmt: skip
    trace = decode(
        Scripted(script).denoiser(), None, CONFIG, [[0, 1, 2]], config, loop="host", trace=True
    ).trace
    assert trace is not None
    np.testing.assert_allclose(Trajectory(trace, np.array([3])).below_at_block_end(0.8), [0])


def test_an_accepted_draft_has_commit_pass_0():
    trace = told((0, 1, 0, 1, 2, 3), window="multi_block", lookahead_trigger=3)
    found = Trajectory(trace, np.array([6]))
    np.testing.assert_allclose(found.commit_frontier(), [(1 + 0) / 2, (2 + 1) / 2, (1 + 2) / 2])
    assert found.masks_left[:, 0].tolist() == [3, 1, 2, 1]


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(BLOCKWISE, marks=pytest.mark.slow),
        STAGED,
        pytest.param(BLOCKWISE.replace(cache="none"), marks=pytest.mark.slow),
    ],
)
@settings(max_examples=8)
@given(salt=st.integers(0, 50), lengths=st.lists(st.integers(1, 24), min_size=3, max_size=3))
def test_measures_agree_with_the_traces_counts(config, salt, lengths):
    trace = toy_decode(PROMPTS, config, salt=salt, trace=True).trace
    assert trace is not None
    whole, part = Trajectory(trace, np.full(3, 24)), Trajectory(trace, np.array(lengths))
    np.testing.assert_array_equal(whole.forwards.sum(axis=0), trace.nfe)
    unscored = np.where(whole.forwards, whole.open_decisions - trace.head_rows, 0)
    eos = trace.event_row[trace.event_token == CONFIG.eos_id]
    repeats = np.bincount(eos, minlength=3) > 1  # of several EOS only the first is measured again
    assert (unscored >= 0).all() and not unscored[:, ~repeats].any()
    assert config is STAGED or not unscored.any()
    assert (part.forwards <= whole.forwards).all() and part.forwards.any(axis=0).all()
    shares = part.tail_shares(8)
    assert (np.diff(shares) >= 0).all() and shares[-1] == 1
    below = whole.below_at_block_end(0.3)
    assert len(below) == 9 and (below >= 0).all() and (below <= 1).all()
    assert ((part.skippable_shares() >= 0) & (part.skippable_shares() < 1)).all()
    frontier = whole.commit_frontier()
    assert ((frontier >= 1) & (frontier <= 8)).all()


@pytest.mark.parametrize("lengths", [[6, 6], [0], [7], []])
def test_lengths_that_do_not_fit_are_named(lengths):
    with pytest.raises(ValueError, match=r"lengths are .*; allowed: one a row, 1 to 6"):
        Trajectory(told(), np.array(lengths))


def test_the_regime_of_a_small_trace_counted_by_hand():
    """Forwards begin with 3, 1, 3, 2 and 1 of 3 masks, and commit 2, 1, 1, 1 and 1 tokens."""
    trace = told()
    found = regime([Trajectory(trace, np.array([6]))])
    assert found.forwards_per_block == 5 / 2
    assert found.late_share == 0
    assert found.tokens_early == 3 / 2
    assert found.tokens_midway == 1
    assert np.isnan(found.tokens_late)
    np.testing.assert_allclose(found.frontier_slope, 0.5)
    assert found.rows_per_forward == trace.live_rows.mean()
    staged = regime([Trajectory(told(**STAGED_STORY), np.array([6]))])
    np.testing.assert_allclose([found.unsure_left, staged.unsure_left], 32 * (1 / 3 + 0) / 2)
    assert set(PUBLISHED) < set(UNITS) == set(found._fields)


def test_batches_are_pooled_into_one_regime():
    one = Trajectory(told(), np.array([6]))
    assert regime([one, one])[:4] == regime([one])[:4]
    with pytest.raises(ValueError, match="there are no traces; allowed: answers whose traces were"):
        regime([])
