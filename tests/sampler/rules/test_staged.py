"""Staged tokens: visible, revised by shadow rows, stable; also those that the window left."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.generate import decode
from llada_jax.sampler.prompts import with_ids
from llada_jax.sampler.trace import Event
from tests.sampler.recorded import recorded_decode
from tests.sampler.rows_alone import assert_row_is
from tests.sampler.scripted import Scripted
from tests.sampler.toy import CONFIG, EOS, MASK, toy_decode

STAGED = SamplerConfig.from_flat(
    gen_length=24, block_length=8, steps=24, cache="blockwise", accept="staged",
    theta_visible=0.2, theta_stable=0.3, end_steps=2,
)  # fmt: skip
SLIDING = STAGED.replace(window="multi_block")
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7]]
A, B, C, D, E, F, G, H, I = range(9)


def story(script, gen_length=6, block_length=3, model=CONFIG, on_step=None, **settings):
    """Decodes after the prompt `a b c`; returns the trace and the tokens fed."""
    config = SamplerConfig.from_flat(
        gen_length=gen_length, block_length=block_length, steps=gen_length, cache="blockwise",
        accept="staged", theta_visible=0.5, theta_stable=0.8, **settings,
    )  # fmt: skip
    scripted = Scripted(script)
    result = decode(
        scripted.denoiser(), None, model, [[A, B, C]], with_ids(config, model), loop="host",
        trace=True, on_step=on_step,
    )  # fmt: skip
    return result.trace, scripted.fed


def events(trace, kind):
    chosen = trace.event_kind == kind
    return list(
        zip(
            trace.event_step[chosen].tolist(),
            trace.event_position[chosen].tolist(),
            trace.event_token[chosen].tolist(),
            strict=True,
        )
    )


FIGURE_9 = [
    {3: (D, 0.9), 4: (G, 0.2), 5: (G, 0.3)},
    {4: (G, 0.3), 5: (E, 0.5)},
    {4: (E, 0.8), 5: (F, 0.6)},
    {5: (F, 0.9), 6: (G, 0.8), 7: (H, 0.9), 8: (G, 0.4)},
    {8: (I, 0.9)},
]
"""The model's predictions at the open positions in each step (arXiv 2606.13740, Figure 9)."""


FIGURE_9_SLIDING = [*FIGURE_9[:3], {5: (F, 0.9), 6: (G, 0.8)}, {7: (H, 0.9), 8: (I, 0.9)}]
"""The window keeps its size: while `e` and `f` are fed, it only has room for `g`."""


@pytest.mark.parametrize(
    "window", ["by_cache", pytest.param("multi_block", marks=pytest.mark.slow)]
)
def test_the_example_of_the_paper(window):
    slides = window == "multi_block"
    figure = FIGURE_9_SLIDING if slides else FIGURE_9

    def script(forward, position, masked):
        if slides and position > 5 and forward < 3:
            return A, 0.1  # a draft
        return figure[forward][position]  # a KeyError if a stable position is scored

    sliding = {"window": window, "lookahead_trigger": 0} if slides else {}
    trace, fed = story(script, **sliding)
    assert trace.tokens[0].tolist() == [A, B, C, D, E, F, G, H, I]
    h = 4 if slides else 3
    commits = [(0, 3, D), (1, 5, E), (2, 4, E), (3, 6, G), (h, 7, H), (4, 8, I)]
    assert events(trace, Event.COMMIT) == commits
    assert events(trace, Event.REPLACE) == [(2, 5, F)]
    assert events(trace, Event.PROMOTE) == [(3, 5, F)]
    drafts = trace.draft_rows[:, 0]
    assert drafts.any() == slides
    assert (trace.head_rows[:, 0] - drafts).tolist() == list(map(len, figure))
    assert trace.shadow_rows[:, 0].tolist() == [0, 0, 1, 1, 0]
    assert fed[2][5] == [E, MASK], "as context, and by its shadow"
    assert fed[3][5] == [F, MASK]


@pytest.mark.parametrize("cascades", [False, True])
def test_adopted_drafts_are_measured_again(cascades):
    """Drafts were scored while the previous block still had masks, so a high confidence does not
    count: here the next forward replaces some and keeps one. They may complete their block."""

    def script(forward, position, masked):
        if position >= 6:
            sure = cascades or position < 8
            return (position if forward == 0 or position == 7 else A), 0.9 if sure else 0.1
        return position, 0.9

    trace, fed = story(script, window="multi_block", lookahead_trigger=3)
    taken = [6, 7, 8] if cascades else [6, 7]
    ahead = [(0, position, position) for position in taken]
    assert events(trace, Event.AHEAD) == ahead
    assert all(fed[1][position] == [position, MASK] for position in taken), "with a shadow each"
    replaced = [position for position in taken if position != 7]
    assert events(trace, Event.REPLACE) == [(1, position, A) for position in replaced]
    assert (1, 7, 7) in events(trace, Event.PROMOTE)


def doubted(forward, position, masked):
    """The first of the block's three tokens is visible, and the next forward doubts it."""
    if position == 3:
        return [(D, 0.6), (E, 0.4), (F, 0.6), (F, 0.3)][min(forward, 3)]
    return position, 0.9 if position == 4 + forward // 2 or position > 5 else 0.1


def test_a_doubted_token_is_replaced_by_a_confident_one():
    seen = []
    trace, _ = story(doubted, on_step=seen.append)
    assert seen[1].confidence[0, 3] == np.float32(0.4)
    assert [token for _, p, token in events(trace, Event.REPLACE) if p == 3] == [F]
    assert trace.tokens[0, 3] == F


@pytest.mark.parametrize("on_change", ["keep", "remask"])
def test_tokens_committed_after_a_changed_token_are_masked_again(on_change):
    """`d` becomes `a` in the third forward, after `e`, which was stable."""

    def script(forward, position, masked):
        if position == 3:
            return (D, 0.6) if forward < 2 else (A, 0.9)
        return position, 0.9 if position > 5 or position - 3 <= forward else 0.1

    trace, fed = story(script, on_change=on_change)
    assert (2, 3, A) in events(trace, Event.REPLACE)
    found = [events(trace, kind) for kind in (Event.REMASK, Event.PROMOTE)]
    again = [(2, 4, MASK)]  # `f` was committed by the third forward itself
    assert found == [again if on_change == "remask" else [], [(2, 3, A)]]
    assert fed[3][4] == ([MASK] if on_change == "remask" else [E])


def test_tokens_after_a_change_are_masked_again_only_once():
    """`d` changes in the second forward and in the third one, `e` and `f` are committed before."""

    def script(forward, position, masked):
        if position == 3:
            return [(D, 0.6), (A, 0.6), (B, 0.6), (B, 0.9)][min(forward, 3)]
        return position, 0.6 if position == 4 else 0.9

    trace, _ = story(script, gen_length=3, on_change="remask")
    assert events(trace, Event.REPLACE) == [(1, 3, A), (2, 3, B)]
    assert events(trace, Event.REMASK) == [(1, 4, MASK), (1, 5, MASK)]


def test_an_eos_after_an_eos_is_not_measured():
    def script(forward, position, masked):
        return (position if position < 4 else EOS), 0.6 if masked and forward < 2 else 0.9

    trace, fed = story(script)
    assert trace.shadow_rows[1, 0] == 2 and fed[1][5] == [EOS]
    assert trace.nfe.tolist() == [3]


@pytest.mark.parametrize("refresh", ["rows", "none"])
def test_a_token_that_left_the_window_is_refreshed_from_the_cache(refresh):
    """`f` is not sure when its block is finished; two forwards later it has left the window."""
    said_of_f = {2: (F, 0.6), 3: (F, 0.6), 4: (H, 0.95), 5: (H, 0.85)}

    def script(forward, position, masked):
        if position == 5:
            return said_of_f.get(forward, (F, 0.1))
        return position, 0.9 if forward >= {4: 2, 7: 4, 8: 5}.get(position, 0) else 0.1

    trace, fed = story(script, gen_length=9, refresh=refresh)
    if refresh == "none":
        assert events(trace, Event.FREEZE) == [(2, 5, F)] and not trace.refreshed.any()
        assert trace.tokens[0, 5] == F
        return
    assert trace.refreshed[:, 0].tolist()[:6] == [0, 0, 0, 0, 1, 1]
    assert fed[4][5] == [F, MASK], "a row for its key and value, and a shadow"
    assert events(trace, Event.REPLACE) == [(4, 5, H)]
    assert fed[5][5] == [H, MASK], "not stable yet: the cache held the keys of `f`"
    assert events(trace, Event.PROMOTE) == [(2, 4, 4), (5, 5, H)]


def test_a_token_that_is_fed_anyway_needs_no_extra_row():
    trace, fed = story(
        lambda forward, position, masked: (position, 0.6 if masked else 0.9), rescore="token"
    )
    assert not trace.shadow_rows.any()
    assert fed[1][3] == [D], "the row of the block says both what follows from it and what it is"
    assert trace.nfe.tolist() == [3]


@pytest.mark.parametrize(
    "window",
    [
        pytest.param({}, id="by_cache"),
        pytest.param(
            {"window": "multi_block", "lookahead_trigger": 0},
            id="multi_block",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_shifted_model_revises_a_token_from_the_row_before(window):
    """A row of a shifted model predicts the next token, not the token that it feeds."""

    def script(forward, position, masked):
        if position > 3:
            return position + 1, 0.9 if forward else 0.1
        return position + (5 if forward else 1), 0.9 if forward else 0.6

    shifted = CONFIG.replace(shift_logits=True)
    trace, _ = story(script, model=shifted, rescore="token", refresh="none", **window)
    assert events(trace, Event.REPLACE) == [(1, 3, 7), (1, 4, 8)]
    assert trace.tokens[0].tolist() == [A, B, C, 7, 8, 5, 6, 7, 8]
    assert not trace.shadow_rows.any() and not trace.refreshed.any()


@pytest.mark.parametrize(
    "end_steps", [4, *[pytest.param(n, marks=pytest.mark.slow) for n in (0, 1, 3)]]
)
def test_forwards_after_the_last_mask(end_steps):
    trace, _ = story(lambda f, position, masked: (position, 0.6), end_steps=end_steps)
    assert trace.nfe.tolist() == [2 + end_steps]


def test_decoding_ends_once_all_tokens_are_stable():
    trace, _ = story(lambda f, position, masked: (position, 0.6 + 0.1 * f))
    assert trace.nfe.tolist() == [3], "no longer than tokens are visible"


def test_tokens_beyond_the_refresh_limit_wait():
    """The window leaves five tokens behind; the four least confident ones are refreshed first
    and are stable at once."""
    confidence = {3: 0.6, 4: 0.5, 5: 0.7, 6: 0.55, 7: 0.65}

    def script(forward, position, masked):
        return position, confidence.get(position, 0.9) if forward < 2 else 0.9

    trace, _ = story(script, gen_length=25, block_length=5)
    assert not events(trace, Event.FREEZE)
    promoted = [(step, position) for step, position, _ in events(trace, Event.PROMOTE)]
    assert promoted == [(2, 3), (2, 4), (2, 6), (2, 7), (3, 5)]


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(STAGED, id="blockwise", marks=pytest.mark.slow),
        pytest.param(SLIDING, id="sliding"),
        pytest.param(
            SLIDING.replace(on_change="remask"),
            id="doubting",
            marks=pytest.mark.slow,
        ),
        pytest.param(STAGED.replace(cache="none"), id="no_cache", marks=pytest.mark.slow),
        pytest.param(
            SLIDING.replace(rescore="token", cfg_scale=0.5),
            id="token_guided",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_both_loops_and_any_batch_decode_alike(config):
    together = toy_decode(PROMPTS, config, salt=3, loop="compiled")
    doubts = (
        config.rule.on_change == "remask"
    )  # then something always changes, so nothing is promoted
    for kind in (Event.REPLACE, Event.REMASK if doubts else Event.PROMOTE):
        assert together.trace.count(kind).sum() > 0, f"the case shows no {kind.name}"
    assert not (together.tokens == MASK).any()
    for row, prompt in enumerate(PROMPTS):
        assert_row_is(together, row, toy_decode([prompt], config, salt=3, loop="host"))


@pytest.mark.parametrize(
    "budget", [pytest.param(budget, marks=pytest.mark.slow) for budget in (None, 20, 40)]
)
@settings(max_examples=3)
@given(salt=st.integers(0, 300))
@example(salt=2)
def test_a_grown_window_and_its_extra_rows_fit_the_bucket_and_the_budget(budget, salt):
    config = SLIDING.replace(gen_length=48, steps=48, lookahead_trigger=8, row_budget=budget)
    result, forwards = recorded_decode([PROMPTS[0]], config, salt=salt)
    trace, end = result.trace, result.tokens.shape[1]
    grew = 0
    for step, rows in list(enumerate(forwards))[1:]:
        live = int(trace.live_rows[step, 0])
        beside = int(trace.shadow_rows[step, 0] + trace.refreshed[step, 0])
        first, *_, last = rows.positions[0][rows.live[0]][: live - beside]
        block_end = len(PROMPTS[0]) + 8 * (trace.block[step, 0] + 1)
        sizes = (min(8, end - first), max(8, block_end - first))
        if live - beside in sizes:
            continue
        grew += 1
        next_buckets = [min(b for b in (8, 16, 32, 64) if b > size + beside) for size in sizes]
        grown = np.minimum(next_buckets, budget or 64)
        assert live in grown or (live < grown.max() and last == end - 1)
    assert grew > 0


@settings(max_examples=10)
@given(salt=st.integers(0, 300))
@example(salt=191)  # replaced while the window passes
@example(salt=291)  # a draft as sure as a stable token, replaced
def test_rows_see_and_write_the_right_cache_positions(salt):
    result, forwards = recorded_decode([PROMPTS[0]], SLIDING, salt=salt)
    trace, final = result.trace, result.tokens[0]
    written = np.full(len(final), -1)
    for step, rows in enumerate(forwards):
        n_window = trace.live_rows[step, 0] - trace.shadow_rows[step, 0] - trace.refreshed[step, 0]
        live = np.flatnonzero(rows.live[0])
        window, others = live[:n_window], live[n_window:]
        positions, sees = rows.positions[0], rows.sees_rows[0]
        assert not sees[np.ix_(window, others)].any(), "the window does not see the others"
        own = positions[others][:, None] == positions[window][None, :]
        assert not (sees[np.ix_(others, window)] & own).any(), "nor they what they ask about"
        assert not rows.sees_cache[0][others, positions[others]].any()
        shadows = others[rows.tokens[0, others] == MASK]
        assert len(shadows) == trace.shadow_rows[step, 0]
        assert not rows.writes[0, shadows].any()
        writes = live[rows.writes[0, live]]
        assert len(set(positions[writes])) == len(writes)
        written[positions[writes]] = rows.tokens[0, writes]
    sure = np.zeros(len(final), bool)
    drafts = trace.event_position[trace.event_kind == Event.AHEAD]  # visible, however sure
    for kind in (Event.COMMIT, Event.PROMOTE, Event.FREEZE):
        chosen = trace.event_kind == kind
        if kind == Event.COMMIT:
            chosen &= ~np.isin(trace.event_position, drafts)
        enough = trace.event_confidence[chosen] >= np.float32(0.3)
        enough |= kind == Event.FREEZE
        sure[trace.event_position[chosen][enough]] = True
    left = np.arange(len(final)) < forwards[-1].positions[0].min()
    np.testing.assert_array_equal(written[left & sure], final[left & sure])


@pytest.mark.slow
def test_an_early_stop_waits_for_visible_tokens():
    config = STAGED.replace(eos_early_stop=True, theta_visible=0.15, theta_stable=0.25)
    stopped = 0
    for salt in range(12):
        result = toy_decode([PROMPTS[0]], config, salt=salt, loop="host")
        assert not (result.tokens == MASK).any()
        stopped += int((result.trace.event_kind == Event.FILL).any())
    assert stopped > 0
