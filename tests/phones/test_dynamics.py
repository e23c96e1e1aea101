"""The decoding process terminates, is deterministic, and follows the settings of the sampler."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.phones.dynamics import (
    SOURCE,
    Dynamics,
    Techniques,
    decode,
    statistics,
    unstable_per_block,
)

USUAL = Dynamics(
    reach=0.55, decay=0.92, skipped=0.5, strictness=2.5, wavering=3.5, tokens_per_forward=4.0
)


@settings(deadline=None, max_examples=40)
@given(
    st.floats(0.05, 1.0),
    st.floats(0.5, 1.0),
    st.sampled_from(["one", "threshold"]),
    st.sampled_from([32, 64, 96]),
    st.integers(0, 5),
)
def test_a_run_has_at_most_one_forward_per_token(reach, decay, commit, tokens, seed):
    dynamics = replace(USUAL, reach=reach, decay=decay)
    techniques = Techniques(commit=commit)
    run = decode(dynamics, techniques, 20, tokens, seed)
    assert 1 <= len(run.forwards) <= tokens
    assert run.source == SOURCE
    assert all(forward.rows % 32 == 0 and forward.cache % 32 == 0 for forward in run.forwards)
    assert run == decode(dynamics, techniques, 20, tokens, seed)


def test_the_window_grows_only_with_a_trigger():
    rows = {f.rows for f in decode(USUAL, Techniques(trigger=0), 20, 128).forwards[1:]}
    assert rows == {32}
    grown = {f.rows for f in decode(USUAL, Techniques(trigger=32), 20, 128).forwards[1:]}
    assert 64 in grown


def mean_forwards(**settings_) -> float:
    runs = [decode(USUAL, Techniques(**settings_), 20, 128, seed) for seed in range(20)]
    return float(np.mean([len(run.forwards) for run in runs]))


def test_every_technique_saves_forwards():
    sliding = mean_forwards(trigger=0)
    ahead = mean_forwards(trigger=8)
    assert 128 > mean_forwards(commit="one") > sliding > ahead


def test_skipped_decisions_and_refreshes_are_counted():
    all_rows = decode(USUAL, Techniques(skip_logits=False, refresh=0), 20, 64)
    skipping = decode(USUAL, Techniques(refresh=2), 20, 64)
    assert all_rows.forwards[0].head_rows == 32 and skipping.forwards[0].head_rows == 16
    assert not any(forward.refreshed for forward in all_rows.forwards)
    assert 1 <= max(forward.refreshed for forward in skipping.forwards) <= 2


def test_positions_on_the_left_are_committed_first():
    blocks = statistics(USUAL, runs=200)
    halves = blocks.first_commit[:16].mean(), blocks.first_commit[16:].mean()
    assert halves[0] < halves[1]
    assert (np.diff(blocks.tail_share) >= 0).all() and blocks.tail_share[-1] < 1
    certain = statistics(Dynamics(reach=1.0, decay=1.0), runs=5)
    assert certain.forwards == 1 and (certain.first_commit == 1).all()


def test_higher_thresholds_commit_less():
    assert USUAL.rarer(0.7) == 1 > USUAL.rarer(0.9) == pytest.approx(np.exp(-0.5))
    assert USUAL.unstable(0.9, 0.7) == 0 and USUAL.unstable(0.7, 0.9) == pytest.approx(
        1 - np.exp(-0.7)
    )
    assert mean_forwards(visible=0.9) > mean_forwards() > mean_forwards(visible=0.5)
    unstable = [unstable_per_block(USUAL, Techniques(stable=s), runs=10) for s in (0.7, 0.8, 0.95)]
    assert unstable[0] == 0 and unstable == sorted(unstable)
    assert USUAL.unstable(0.7, 1.0) > USUAL.unstable(0.7, 0.99) > USUAL.unstable(0.7, 0.9)
    assert USUAL.rarer(0.9) == pytest.approx(np.exp(-2.5 * 0.2)) and USUAL.rarer(1.0) < 0.01
    strict = statistics(USUAL.at(0.9), runs=100).forwards
    assert strict > statistics(USUAL, runs=100).forwards


def test_the_rest_settles_at_once_after_the_answer():
    short, whole = (
        np.mean([len(decode(dynamics, Techniques(), 20, 128, seed).forwards) for seed in range(10)])
        for dynamics in (replace(USUAL, answer=48), USUAL)
    )
    alone = np.mean([len(decode(USUAL, Techniques(), 20, 48, seed).forwards) for seed in range(10)])
    assert alone - 2 < short < whole


def test_a_window_that_does_not_slide_is_the_block():
    still = decode(USUAL, Techniques(slides=False), 20, 64).forwards
    assert {forward.rows for forward in still[1:]} == {32}
    assert mean_forwards(slides=False) > mean_forwards()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dynamics(reach=0, decay=0.9), "reach is 0; allowed: above 0, up to 1"),
        (lambda: replace(USUAL, skipped=2), "skipped is 2; allowed: 0 or more, up to 1"),
        (lambda: replace(USUAL, tokens_per_forward=0.5), "tokens_per_forward is 0.5; allowed: 1"),
        (lambda: Techniques(commit="all"), "commit is 'all'; allowed: 'one', 'threshold'"),
        (lambda: replace(USUAL, answer=0), "answer is 0; allowed: 1 or more"),
        (lambda: replace(USUAL, wavering=-1.0), "wavering is -1.0; allowed: 0 or more"),
        (lambda: Techniques(visible=0), "visible is 0; allowed: above 0, up to 1"),
        (lambda: Techniques(trigger=-1), "trigger is -1; allowed: 0 or more"),
    ],
)
def test_invalid_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
