"""Lossless multi-block decoding: the tokens of block-wise decoding, in fewer forwards."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llada_jax as lj
from llada_jax.config import SamplerConfig
from llada_jax.sampler.generate import decode
from llada_jax.sampler.prompts import with_ids
from llada_jax.sampler.trace import Event
from tests.sampler.rows_alone import assert_row_is
from tests.sampler.scripted import Scripted
from tests.sampler.toy import BLOCK_CAUSAL, CONFIG, toy_decode

BLOCKWISE = SamplerConfig(gen_length=24, block_length=8, steps=12, cache="blockwise")
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7]]
RULES = {
    "one_a_step": {"steps": 24},
    "two_a_step": {},
    "threshold": {"threshold": 0.24},
    "factor": {"factor": 0.9},
    "entropy": {"entropy_bound": 2.0},
    "random": {"remasking": "random", "temperature": 0.5},
}
QUICK = (("random", 2),)
"""Rules, and the masks at which branches begin."""


def lossless(config, **settings):
    return config.replace(window="multi_block", lossless=True, **settings)


def hits(trace):
    return int((trace.event_kind == Event.AHEAD).sum())


@pytest.mark.parametrize(
    ("model", "rule", "trigger"),
    [
        *[(CONFIG, *case) for case in QUICK],
        *[
            pytest.param(model, rule, trigger, marks=pytest.mark.slow)
            for model, rule, trigger in product((CONFIG, BLOCK_CAUSAL), RULES, (2, 8))
        ],
    ],
)
@settings(max_examples=3)
@given(salt=st.integers(0, 500), seed=st.integers(0, 99))
def test_tokens_equal_those_of_blockwise_decoding(model, rule, trigger, salt, seed):
    config = BLOCKWISE.replace(**RULES[rule])
    plain = toy_decode(PROMPTS, config, model, salt, seed=seed, loop="host")
    fast = toy_decode(
        PROMPTS, lossless(config, lookahead_trigger=trigger), model, salt, seed=seed, loop="host"
    )
    np.testing.assert_array_equal(fast.tokens, plain.tokens)
    assert (fast.nfe <= plain.nfe).all()


def test_hits_save_forwards_of_a_toy_without_patience():
    saved = found = 0
    for salt in range(3):
        config = BLOCKWISE.replace(steps=24)
        plain = toy_decode(PROMPTS, config, salt=salt, loop="host")
        fast = toy_decode(PROMPTS, lossless(config, lookahead_trigger=8), salt=salt, loop="host")
        np.testing.assert_array_equal(fast.tokens, plain.tokens)
        saved += int(plain.nfe.sum() - fast.nfe.sum())
        found += hits(fast.trace)
    assert saved == found > 0, "one token a step: each one committed ahead is a forward saved"


def steady_run(config):
    """Of a model that never changes its mind."""
    steady = Scripted(lambda forward, position, masked: (position % 20, 0.5 + position / 100))
    config = with_ids(config, CONFIG)
    return decode(steady.denoiser(), None, CONFIG, PROMPTS, config, loop="host", trace=True)


def test_a_steady_model_needs_half_the_forwards():
    """Each step after a block's first commits what was expected."""
    config = BLOCKWISE.replace(steps=24)
    plain, fast = steady_run(config), steady_run(lossless(config, lookahead_trigger=8))
    np.testing.assert_array_equal(plain.tokens, fast.tokens)
    assert plain.nfe.tolist() == [24] * 3
    assert fast.nfe.tolist() == [13] * 3, "the very first step has nothing to expect"


@pytest.mark.slow
def test_a_later_trigger_saves_fewer_forwards_and_rows():
    late, early = (
        steady_run(lossless(BLOCKWISE.replace(steps=24), lookahead_trigger=trigger))
        for trigger in (2, 8)
    )
    assert early.nfe[0] < late.nfe[0] < 24
    assert late.trace.branch_rows.sum() < early.trace.branch_rows.sum()


def test_there_are_programs_for_the_largest_window_and_branch():
    """Each forward finishes a block and, by its branch, all but a token of the next one, so that
    window and branch hold two blocks each; then a branch finishes a block as a whole."""

    def script(forward, position, masked):
        return position % 20, 0.95 if position % 8 or forward == 6 else 0.5

    config = BLOCKWISE.replace(gen_length=64, steps=64, threshold=0.9)
    config = with_ids(lossless(config, lookahead_trigger=8), CONFIG)
    scripted = Scripted(script)
    result = decode(scripted.denoiser(), None, CONFIG, [[1]], config, loop="host", trace=True)
    trace = result.trace
    assert trace is not None and trace.live_rows.max() == 4 * 8 <= trace.rows.max()


@pytest.mark.parametrize(
    "rule", [{"threshold": 0.24}, pytest.param({"temperature": 0.7}, marks=pytest.mark.slow)]
)
def test_both_loops_and_any_batch_decode_alike(rule):
    config = lossless(BLOCKWISE.replace(steps=24, **rule), lookahead_trigger=8)
    config = config.replace(eos_early_stop=True)
    seeds = [5, 6, 7]
    together = toy_decode(PROMPTS, config, salt=4, seed=seeds, loop="compiled")
    for row, prompt in enumerate(PROMPTS):
        alone = toy_decode([prompt], config, salt=4, seed=[seeds[row]], loop="host")
        assert_row_is(together, row, alone)


QUESTIONS = [
    "Anna had 4 apples. She bought 5 more apples. She gave 3 apples to Ben. How many apples did "
    "Anna have in the end?",
    "Jack bought 5 bags of 2 books. Then he lost 3 books. How many books did he have after that?",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [pytest.param({}, marks=pytest.mark.slow), {"threshold": 0.9}],
    ids=["quota", "threshold"],
)
def test_a_trained_model_writes_the_same_in_fewer_forwards(rule):
    """Tokens alone are compared: a branch takes other products, which may round scores otherwise,
    but no choice of this model between tokens is that close here."""
    model = lj.load("tiny")
    prompts = [
        model.tokenizer.encode_chat([{"role": "user", "content": question}])
        for question in QUESTIONS
    ]
    config = BLOCKWISE.replace(gen_length=16, block_length=8, steps=16, **rule)
    plain = lj.generate(model, prompts, config, loop="host")
    fast = lj.generate(model, prompts, lossless(config, lookahead_trigger=8), loop="host")
    np.testing.assert_array_equal(fast.tokens, plain.tokens)
    assert (fast.nfe <= plain.nfe).all() and fast.nfe.sum() < plain.nfe.sum()
