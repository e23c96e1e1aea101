"""The window that slides over blocks, its drafts, and its growth."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.config import LatencyTable
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.generate import decode
from llada_jax.sampler.prompts import with_ids
from llada_jax.sampler.trace import Event
from tests.sampler.recorded import recorded_decode
from tests.sampler.rows_alone import assert_row_is
from tests.sampler.scripted import Scripted
from tests.sampler.toy import BLOCK_CAUSAL, CONFIG, MASK, toy_decode

SLIDING = SamplerConfig.from_flat(
    gen_length=24, block_length=8, steps=24, cache="blockwise", window="multi_block", threshold=0.24
)
SHIFTED = CONFIG.replace(shift_logits=True)
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7]]


def table(rows, ms):
    return LatencyTable(rows=rows, ms=ms)


BOTH_BLOCKS = table((6, 10), (1.0, 1.5))
"""Lets a window grow over the second block."""
VARIANTS = {
    "mask": {},
    "quota": {"threshold": None, "draft_threshold": 0.24},
}


@pytest.mark.slow  # rules/test_staged.py has the window in both loops
@pytest.mark.parametrize("variant", VARIANTS)
def test_both_loops_and_any_batch_decode_alike(variant):
    config = SLIDING.replace(**VARIANTS[variant])
    seeds = [11, 22, 33]
    together = toy_decode(PROMPTS, config, salt=3, seed=seeds, loop="compiled")
    assert together.trace.count(Event.AHEAD).sum() > 0, "the case must accept drafts"
    for row, prompt in enumerate(PROMPTS):
        alone = toy_decode([prompt], config, salt=3, seed=[seeds[row]], loop="host")
        assert_row_is(together, row, alone)


@pytest.mark.parametrize(
    ("model", "trigger"),
    [
        pytest.param(CONFIG, 4, id="bidirectional"),
        *[
            pytest.param(model, trigger, marks=pytest.mark.slow)
            for model in (CONFIG, BLOCK_CAUSAL, SHIFTED)
            for trigger in (0, 4, 8)
        ],
    ],
)
@settings(max_examples=5)
@given(salt=st.integers(0, 200))
def test_a_position_leaves_once_its_final_token_was_fed(model, trigger, salt):
    """Rows never see a draft in the cache: all cached positions that they read are final."""
    config = SLIDING.replace(lookahead_trigger=trigger)
    result, forwards = recorded_decode(PROMPTS[:1], config, model, salt)
    (final,) = result.tokens
    written = np.full(1 + max(rows.positions.max() for rows in forwards), -1)
    for rows in forwards:
        live = rows.live[0]
        seen = rows.sees_cache[0][live].any(axis=0)[: len(final)]
        np.testing.assert_array_equal(written[: len(final)][seen], final[seen])
        written[rows.positions[0][live]] = rows.tokens[0][live]


@settings(max_examples=10)
@given(salt=st.integers(0, 200))
def test_drafts_keep_the_order_of_blocks_and_the_commit_rule(salt):
    trace = toy_decode(PROMPTS, SLIDING, salt=salt, loop="compiled").trace
    commits = trace.event_kind == Event.COMMIT
    for row, prompt in enumerate(PROMPTS):
        mine = commits & (trace.event_row == row)
        block = (trace.event_position[mine] - len(prompt)) // 8
        step = trace.event_step[mine]
        for (_, before), (_, after) in itertools.pairwise(
            (s, block[step == s]) for s in np.unique(step)
        ):
            assert before.max() <= after.min(), "a block opens when the one before is complete"
    ahead = trace.event_kind == Event.AHEAD
    assert (trace.event_confidence[ahead] >= np.float32(0.24)).all()
    block = trace.block[trace.event_step[ahead], trace.event_row[ahead]]
    origin = trace.prompt_lengths[trace.event_row[ahead]]
    assert ((trace.event_position[ahead] - origin) // 8 > block).all()


@pytest.mark.parametrize("loop", ["host", pytest.param("compiled", marks=pytest.mark.slow)])
def test_infilling_skips_blocks_without_holes(loop):
    canvas = np.arange(30) % 20
    canvas[[1, 2, 3, 20, 21, 27]] = MASK
    result = toy_decode([canvas], SLIDING, salt=4, infill=True, loop=loop)
    kept = canvas != MASK
    np.testing.assert_array_equal(result.generated[0][kept], canvas[kept])
    assert not (result.generated[0] == MASK).any()
    assert set(result.trace.block[: result.nfe[0], 0].tolist()) == {0, 2, 3}


def story(script, **settings):
    """Decodes two blocks of four after a prompt of two; returns the trace and the tokens fed."""
    config = SLIDING.replace(gen_length=8, block_length=4, steps=8, threshold=0.5, **settings)
    return scripted_decode(script, config, prompt=[1, 2])


def scripted_decode(script, config, prompt=(0,)):
    scripted = Scripted(script)
    config = with_ids(config, CONFIG)
    prompts = [list(prompt)]
    result = decode(scripted.denoiser(), None, CONFIG, prompts, config, loop="host", trace=True)
    return result.trace, scripted.fed


def test_the_window_slides_and_adopts_drafts():
    """As in the paper's Figure 7: committed tokens at the left edge leave the window, and drafts
    that the last forward of a block is sure of are accepted without another forward."""
    sure_at = {2: 0, 3: 1, 4: 2, 5: 2, 6: 1, 7: 3, 8: 2, 9: 3}  # position: forward

    def script(forward, position, masked):
        return position, 0.9 if masked and forward >= sure_at[position] else 0.1

    trace, fed = story(script, lookahead_trigger=0)
    assert [sorted(window) for window in fed] == [
        [0, 1, 2, 3, 4, 5],  # the prompt and the first block
        [2, 3, 4, 5],
        [3, 4, 5, 6],  # token 2 has been fed; 6 is a draft
        [4, 5, 6, 7],  # tokens 4 and 5 must still be fed, so 8 and 9 are out of reach
        [7, 8, 9],
    ]
    assert fed[2][6] == [MASK], "it was sure of 6 before, but its block was not current"
    assert trace.commit_steps()[0, 2:].tolist() == [0, 1, 2, 2, 2, 3, 4, 4]
    assert trace.event_position[trace.event_kind == Event.AHEAD].tolist() == [6]


@pytest.mark.parametrize(
    ("last", "second_block"), [(2, [2, 3, 4, 5, 6, 7, 8, 9]), (4, [4, 5, 6, 7])]
)
def test_a_window_keeps_its_size_if_that_leaves_masks_to_commit(last, second_block):
    """The last token of the first block and the tokens after it must still be fed."""

    def script(forward, position, masked):
        return position, 0.9 if position < 6 and position != last else 0.1

    trace, fed = story(script, lookahead_trigger=0)
    assert trace.block[:3, 0].tolist() == [0, 0, 1]
    assert sorted(fed[2]) == second_block


def test_a_window_contains_adopted_drafts():
    """The window had grown in the last forward of the first block, which was sure of the second
    block's end."""

    def script(forward, position, masked):
        return position, 0.9 if position in (2, 3, 9) or (forward > 0 and position < 6) else 0.1

    trace, fed = story(script, lookahead_trigger=4)
    assert trace.event_position[trace.event_kind == Event.AHEAD].tolist() == [9]
    assert sorted(fed[2]) == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    "rule",
    [
        {"draft_threshold": 0.24},
        pytest.param({"forced_progress": "quota"}, marks=pytest.mark.slow),
    ],
)
def test_a_window_contains_the_masks_that_the_schedule_commits(rule):
    config = SLIDING.replace(threshold=0.99 if "forced_progress" in rule else None, steps=6, **rule)
    for salt in range(4):
        result = toy_decode(PROMPTS, config, salt=salt, loop="host")
        assert not (result.tokens == MASK).any()
        assert (result.nfe <= 6).all()


def test_an_uncertain_draft_is_not_adopted():
    def script(forward, position, masked):
        return position + forward, 0.9 if position < 6 or forward > 0 else 0.4

    trace, fed = story(script, lookahead_trigger=4, latency_table=BOTH_BLOCKS)
    assert sorted(fed[0]) == list(range(10)), "two blocks are in the first forward"
    assert trace.commit_steps()[0, 2:].tolist() == [0] * 4 + [1] * 4
    assert trace.tokens[0, 6:].tolist() == [7, 8, 9, 10], "the later prediction counts"
    assert trace.draft_rows[:, 0].tolist() == [4, 0]


def test_drafts_of_several_blocks_cascade():
    three_blocks = table((7, 19), (1.0, 1.5))
    config = SLIDING.replace(
        gen_length=18, block_length=6, steps=18, lookahead_trigger=6, latency_table=three_blocks
    )
    scripted = Scripted(lambda forward, position, masked: (position, 0.9))
    config = with_ids(config, CONFIG)
    result = decode(scripted.denoiser(), None, CONFIG, [[1]], config, loop="host", trace=True)
    assert result.nfe.tolist() == [1] and result.tpf == 18


def two_in_each_forward(forward, position, masked):
    return position, 0.95 if position <= 2 * (forward + 1) else 0.1


@pytest.mark.parametrize(
    "trigger", [4, *[pytest.param(n, marks=pytest.mark.slow) for n in (0, 2, 8)]]
)
def test_the_trigger_decides_when_the_window_grows(trigger):
    config = SLIDING.replace(threshold=0.9, lookahead_trigger=trigger)
    trace, _ = scripted_decode(two_in_each_forward, config)
    left = np.array([6, 4, 2])
    assert (trace.live_rows[1:4, 0] > 8).tolist() == (left <= trigger).tolist()


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        pytest.param({}, 16, id="doubling"),
        pytest.param({"row_budget": 10}, 10, id="budget", marks=pytest.mark.slow),
        pytest.param({"latency_table": table((8, 12, 32), (1.0, 1.5, 4.0))}, 12, id="next_bucket"),
        pytest.param(
            {"latency_table": table((8, 12, 32), (1.0, 1.1, 1.2))},
            12,
            id="no_bucket_is_crossed",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"latency_table": table((8, 12, 32), (1.0, 2.1, 4.0))},
            8,
            id="too_slow",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"latency_table": table((12, 32), (1.0, 2.5))},
            12,
            id="no_slower",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_window_grows_to_the_next_bucket(settings, rows):
    config = SLIDING.replace(threshold=0.9, lookahead_trigger=4, **settings)
    trace, _ = scripted_decode(two_in_each_forward, config)
    assert trace.live_rows[1:4, 0].tolist() == [8, rows, rows], "six, four and two masks are left"


def most_rows(salt, rows, staged, budget):
    """Returns the largest number of rows in a run with a table that lets the window grow and
    accepts all of it at once. The loop fails if a step needs more rows than any program has."""
    costs = table((8, *rows), tuple(1.0 + 0.01 * n for n in (8, *rows)))
    rule = {"threshold": None, "accept": "staged", "theta_visible": 0.1, "theta_stable": 0.3}
    config = SLIDING.replace(
        gen_length=64, steps=64, latency_table=costs, lookahead_trigger=8,
        row_budget=budget, **rule if staged else {"threshold": 0.05},
    )  # fmt: skip
    return toy_decode(PROMPTS[1:2], config, salt=salt, seed=[1], loop="host").trace.live_rows.max()


@pytest.mark.parametrize(
    ("salt", "rows", "staged", "budget"),
    [
        pytest.param(3, (48,), False, None, marks=pytest.mark.slow),
        pytest.param(3, (12, 48), True, 14, marks=pytest.mark.slow),
    ],
)
def test_no_step_needs_more_rows_than_there_are_programs_for(salt, rows, staged, budget):
    assert most_rows(salt, rows, staged, budget) > 8


@pytest.mark.slow
@settings(max_examples=10)
@given(
    salt=st.integers(0, 200),
    rows=st.sets(st.sampled_from([12, 16, 24, 32, 48]), min_size=1).map(sorted).map(tuple),
    staged=st.booleans(),
    budget=st.sampled_from([None, 14, 24]),
)
def test_no_step_of_any_table_needs_more_rows(salt, rows, staged, budget):
    assert most_rows(salt, rows, staged, budget) > 8


def shifted_run(budget, loop):
    config = SLIDING.replace(row_budget=budget, gen_length=48, steps=48)
    return config, toy_decode(PROMPTS[:1], config, SHIFTED, salt=3, loop=loop).trace


@pytest.mark.slow
@pytest.mark.parametrize("budget", [None, 12])
def test_the_row_before_a_growing_window_counts_as_a_row(budget):
    """With shifted outputs, no forward has more rows than its bucket or the budget."""
    config, trace = shifted_run(budget, "host")
    assert trace.draft_rows.any() and (trace.event_kind == Event.AHEAD).any()
    live = trace.live_rows[1:, 0]
    largest = 16 if budget is None else budget
    assert config.window.growth(config, shift=1).buckets[0] == 9
    assert (live == largest).any() and set(trace.rows[1:][live == largest]) == {largest}


@pytest.mark.slow
@pytest.mark.parametrize("budget", [None, 12])
def test_both_loops_decode_a_shifted_model_alike(budget):
    host, compiled = (shifted_run(budget, loop)[1] for loop in ("host", "compiled"))
    assert host.same_decoding(compiled)
