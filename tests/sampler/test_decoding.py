"""Properties of whole decoding runs, on a toy denoiser that has no rounding."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.model.head import ScoreRules
from llada_jax.programs import own_jit
from llada_jax.rows import make_rows
from llada_jax.sampler import host_runner, runner
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.generate import Result, decode
from llada_jax.sampler.prompts import with_ids
from llada_jax.sampler.state import MASKED
from llada_jax.sampler.trace import Event
from llada_jax.types import KVCache
from tests.sampler.reference import reference_decode
from tests.sampler.rows_alone import assert_row_is
from tests.sampler.toy import (
    BLOCK_CAUSAL,
    CONFIG,
    EOS,
    MASK,
    forward_rows,
    in_parts,
    score_rows,
    toy_decode,
    toy_denoiser,
)

WINDOWS = ("none", "prefix", "dual", "blockwise")
LOOPS = ("host", "compiled")
RULES = ({}, {"threshold": 0.3}, {"accept": "entropy_distance", "max_entropy": 2.0})
SLOW = pytest.mark.slow
SMALL = SamplerConfig.from_flat(gen_length=24, block_length=8, steps=12)
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7]]
SHORT_PROMPTS = st.lists(st.integers(0, 20), min_size=1, max_size=7)
"""Canvases of one padded length, so that they share a program."""


@jax.jit
def score_whole_canvas(salt, tokens):
    positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    live, nothing = jnp.ones(tokens.shape, bool), jnp.zeros((1, 0), bool)
    cache = KVCache(*[(jnp.zeros((1, 1, 0, 1), jnp.int32),)] * 2)
    hidden = forward_rows(salt, make_rows(tokens, positions, live, nothing), cache).hidden
    return score_rows(salt, hidden, None, ScoreRules(forbidden=(MASK,)))


@pytest.mark.parametrize(
    ("rule", "remasking"),
    [
        *zip(RULES, ("entropy", "low_confidence", "margin"), strict=True),
        *[
            pytest.param(rule, remasking, marks=SLOW)
            for rule, remasking in product(RULES, ("low_confidence", "entropy", "margin"))
        ],
    ],
)
@settings(max_examples=8)
@given(salt=st.integers(0, 100))
def test_whole_canvas_equals_a_plain_loop(rule, remasking, salt):
    config = SMALL.replace(remasking=remasking, mask_id=MASK, **rule)
    result = toy_decode([PROMPTS[0]], config, salt=salt)

    def predict(canvas):
        scores = score_whole_canvas(jnp.int32(salt), jnp.asarray(canvas, jnp.int32)[None])
        return [np.asarray(score)[0] for score in scores]

    tokens, commit_step = reference_decode(predict, PROMPTS[0], config, MASK)
    np.testing.assert_array_equal(result.tokens[0], tokens)
    np.testing.assert_array_equal(result.trace.commit_steps()[0], commit_step)


def assert_complete(result: Result, prompts: Sequence[Sequence[int]]) -> None:
    """Asserts that prompts are unchanged and no mask is left."""
    for row, prompt in enumerate(prompts):
        canvas = result.tokens[row, -len(prompt) - SMALL.gen_length :]
        np.testing.assert_array_equal(canvas[: len(prompt)], prompt)
    assert not (result.tokens == MASK).any()
    filled = result.trace.count(Event.COMMIT) + result.trace.count(Event.FILL)
    assert filled.sum() == len(prompts) * SMALL.gen_length


@pytest.mark.parametrize(
    ("model", "cache", "rule"),
    [
        (CONFIG, "dual", RULES[2]),
        *[pytest.param(CONFIG, *pair, marks=SLOW) for pair in product(WINDOWS, RULES)],
        *[pytest.param(BLOCK_CAUSAL, w, {"remasking": "random"}, marks=SLOW) for w in WINDOWS],
    ],
)
@settings(max_examples=2)
@given(salt=st.integers(0, 100), seed=st.integers(0, 1000))
def test_both_loops_and_any_batch_decode_alike(model, cache, rule, salt, seed):
    """Compares the compiled loop on a batch with the host loop on each single prompt."""
    config = SMALL.replace(cache=cache, temperature=0.7, eos_early_stop=True, **rule)
    seeds = [seed, seed + 11, seed + 22]
    together = toy_decode(PROMPTS, config, model, salt, seed=seeds, loop="compiled")
    assert_complete(together, PROMPTS)
    longest = max(map(len, PROMPTS))
    for row, prompt in enumerate(PROMPTS):
        alone = toy_decode([prompt], config, model, salt, seed=[seeds[row]], loop="host")
        assert_row_is(together, row, alone)
        padding = longest - len(prompt)
        assert (together.tokens[row, :padding] == EOS).all()
        np.testing.assert_array_equal(together.tokens[row, padding:], alone.tokens[0])


@SLOW
@pytest.mark.parametrize("cache", WINDOWS)
@given(salt=st.integers(0, 100), temperature=st.floats(0.5, 1.5), rule=st.sampled_from(RULES))
@settings(max_examples=6)
def test_both_loops_decode_a_batch_alike(cache, salt, temperature, rule):
    """As above, but greedy, and both loops get the batch, so buckets and steps are equal too."""
    for config in (SMALL.replace(cache=cache, **rule), SMALL.replace(
        cache=cache, temperature=temperature, **rule
    )):  # fmt: skip
        host, compiled = (toy_decode(PROMPTS, config, salt=salt, loop=loop) for loop in LOOPS)
        assert_complete(host, PROMPTS)
        assert host.trace.same_decoding(compiled.trace)


@pytest.mark.parametrize(
    ("cache", "steps"),
    [
        pytest.param(*pair, marks=[] if pair == ("none", 12) else SLOW)
        for pair in product(WINDOWS, (3, 6, 12, 24, 48))
    ],
)
def test_the_number_of_masks_follows_the_schedule(cache, steps):
    config = SMALL.replace(cache=cache, steps=steps)
    result = toy_decode(PROMPTS, config)
    assert_complete(result, PROMPTS)
    trace = result.trace
    per_block = config.steps_per_block
    schedule = [8 // per_block + (step < 8 % per_block) for step in range(per_block)]
    expected = [due for due in schedule if due] * config.n_blocks
    for row in range(len(PROMPTS)):
        committed = np.bincount(trace.event_step[trace.event_row == row])
        assert committed.tolist() == expected


def test_the_key_determines_the_canvas():
    config = SMALL.replace(temperature=1.0)
    first, again, other = (toy_decode(PROMPTS, config, seed=seed).tokens for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_equal_prompts_of_a_batch_draw_their_own_noise():
    result = toy_decode([PROMPTS[0]] * 3, SMALL.replace(temperature=1.0))
    assert (result.tokens[0] != result.tokens[1]).any()


@SLOW
@pytest.mark.parametrize("loop", LOOPS)
def test_jit_equals_no_jit(loop):
    config = SamplerConfig.from_flat(
        gen_length=8, block_length=4, steps=4, cache="dual", temperature=0.5, threshold=0.4
    )
    jitted = toy_decode(PROMPTS[:2], config, loop=loop)
    with jax.disable_jit():
        plain = toy_decode(PROMPTS[:2], config, loop=loop)
    assert jitted.trace.same_decoding(plain.trace)


@settings(max_examples=8)
@given(salt=st.integers(0, 100), prompt=SHORT_PROMPTS)
def test_block_causal_tokens_never_depend_on_later_blocks(salt, prompt):
    """A shorter canvas has fewer later blocks."""
    long = toy_decode([prompt], SMALL, BLOCK_CAUSAL, salt=salt)
    short_config = SMALL.replace(gen_length=16, steps=8)
    short = toy_decode([prompt], short_config, BLOCK_CAUSAL, salt=salt)
    whole_blocks = (len(prompt) + 16) // 8 * 8  # the last block of the short canvas may be cut
    np.testing.assert_array_equal(long.tokens[0, :whole_blocks], short.tokens[0, :whole_blocks])


@pytest.mark.parametrize(
    "rule", [RULES[0], *[pytest.param(rule, marks=SLOW) for rule in RULES[1:]]]
)
@settings(max_examples=3)
@given(salt=st.integers(0, 100), prompt=SHORT_PROMPTS)
def test_every_window_is_exact_if_attention_is_block_causal(rule, salt, prompt):
    """With both loops."""
    runs = [
        toy_decode([prompt], SMALL.replace(cache=cache, **rule), BLOCK_CAUSAL, salt, loop=loop)
        for cache, loop in zip(WINDOWS, ("compiled", "host", "host", "compiled"), strict=True)
    ]
    for run in runs[1:]:
        np.testing.assert_array_equal(run.tokens, runs[0].tokens)
        np.testing.assert_array_equal(run.nfe, runs[0].nfe)


@pytest.mark.parametrize(
    "cache", ["blockwise", *[pytest.param(c, marks=SLOW) for c in WINDOWS[1:3]]]
)
def test_shifted_outputs_read_the_row_before(cache):
    """Windows of a shifted model are exact if attention is block-causal, which shows that the
    last row of a block predicts the first token of the next block."""
    shifted, prompts = BLOCK_CAUSAL.replace(shift_logits=True), [PROMPTS[0]]
    whole = toy_decode(prompts, SMALL, shifted)
    window = toy_decode(prompts, SMALL.replace(cache=cache), shifted, loop="host")
    np.testing.assert_array_equal(window.tokens, whole.tokens)
    unshifted = toy_decode(prompts, SMALL, BLOCK_CAUSAL)
    assert (whole.tokens != unshifted.tokens).any()


def test_rows_of_each_window():
    prompt = PROMPTS[0]
    total = len(prompt) + 24
    expected = {
        "prefix": [total, 24, total, 16, total, 8],
        "blockwise": [len(prompt) + 8, 8, 16, 8, 16, 8],
    }
    traces = {}
    for cache, rows in expected.items():
        traces[cache] = trace = toy_decode([prompt], SMALL.replace(cache=cache, steps=6)).trace
        assert trace.live_rows[:, 0].tolist() == rows
        assert (trace.rows >= trace.live_rows[:, 0]).all()
        assert trace.head_rows[:, 0].tolist() == [8, 4] * 3
    assert traces["blockwise"].cache_length[:, 0].tolist() == [0, 5, 5, 13, 13, 21]


def test_finished_rows_are_not_run():
    config = SMALL.replace(threshold=0.3)
    result = toy_decode(PROMPTS, config, salt=1)
    assert len(set(result.nfe.tolist())) > 1, "the case must have rows of different length"
    for row, forwards in enumerate(result.nfe):
        assert (result.trace.live_rows[:forwards, row] > 0).all()
        assert (result.trace.live_rows[forwards:, row] == 0).all()
        assert (result.trace.head_rows[forwards:, row] == 0).all()
        assert result.trace.event_step[result.trace.event_row == row].max() == forwards - 1


@pytest.mark.parametrize(
    ("cache", "rule"),
    [("dual", RULES[0]), *[pytest.param(*pair, marks=SLOW) for pair in product(WINDOWS, RULES)]],
)
@settings(max_examples=6)
@given(
    holes=st.lists(st.integers(0, 19), min_size=1, max_size=20, unique=True),
    salt=st.integers(0, 50),
)
def test_infilling_fills_the_holes_and_nothing_else(cache, rule, holes, salt):
    canvas = np.arange(20) % 20
    canvas[holes] = MASK
    config = SMALL.replace(cache=cache, **rule)
    result = toy_decode([canvas], config, salt=salt, infill=True)
    kept = np.setdiff1d(np.arange(20), holes)
    np.testing.assert_array_equal(result.tokens[0, kept], canvas[kept])
    assert not (result.tokens == MASK).any()
    assert sorted(result.trace.event_position.tolist()) == sorted(holes)


@pytest.mark.parametrize("cache", [pytest.param(c, marks=SLOW) for c in WINDOWS])
def test_infilling_a_batch_fills_each_canvas_as_alone(cache):
    canvases = [[1, MASK, 3, MASK, MASK], [MASK] * 11, [4, 5, 6]]
    config = SMALL.replace(cache=cache)
    together = toy_decode(canvases, config, infill=True)
    for row, canvas in enumerate(canvases[:2]):
        alone = toy_decode([canvas], config, infill=True)
        np.testing.assert_array_equal(together.generated[row], alone.generated[0])
        assert together.nfe[row] == alone.nfe[0]
    assert together.generated[2].tolist() == canvases[2] and together.nfe[2] == 0


def test_eos_early_stop_fills_with_eos():
    config = SMALL.replace(eos_early_stop=True, threshold=0.2)
    found = 0
    for salt in range(40):
        result = toy_decode([PROMPTS[0]], config, salt=salt)
        generated = result.generated[0]
        fills = result.trace.event_kind == 1
        if fills.any():
            found += 1
            assert (generated[result.trace.event_position[fills] - len(PROMPTS[0])] == EOS).all()
            full = toy_decode([PROMPTS[0]], config.replace(eos_early_stop=False), salt=salt)
            end = int(np.argmax(generated == EOS)) + 1
            np.testing.assert_array_equal(generated[:end], full.generated[0][:end])
            assert result.nfe[0] < full.nfe[0]
        assert not (generated == MASK).any()
    assert found >= 3


def test_eos_rules():
    never = SMALL.replace(logits_eos_inf=True)
    assert not any((toy_decode([PROMPTS[0]], never, salt=s).tokens == EOS).any() for s in range(30))
    last = SMALL.replace(confidence_eos_eot_inf=True, steps=24)
    seen = 0
    for salt in range(30):
        trace = toy_decode([PROMPTS[0]], last, salt=salt).trace
        eos = trace.event_token == EOS
        assert (trace.event_confidence[eos] == 0).all()
        seen += eos.sum()
    assert seen > 0


DETAILS: list[dict[str, Any]] = [
    {"strict_threshold": True},
    {"confidence_dtype": "float64"},
    {"temperature": 0.5, "noise_dtype": "float64"},
    {"forced_progress": "quota"},
    {"predict_mask": True},
]


@pytest.mark.parametrize(
    "options",
    [
        {name: value for detail in DETAILS[:-1] for name, value in detail.items()},
        *[pytest.param(detail, marks=SLOW) for detail in DETAILS],
    ],
)
def test_both_loops_agree_on_settings_that_samplers_implement_differently(options):
    config = SMALL.replace(threshold=1.0, steps=3, **options)
    host, compiled = (toy_decode(PROMPTS, config, loop=loop) for loop in LOOPS)
    assert host.trace.same_decoding(compiled.trace)
    assert (host.nfe == 3).all() == ("forced_progress" in options)


def test_a_predicted_mask_stays_masked():
    config = SMALL.replace(predict_mask=True)
    for salt in range(60):
        result = toy_decode([PROMPTS[0]], config, salt=salt)
        left = int((result.generated[0] == MASK).sum())
        assert len(result.trace.event_token) == 24 - left
        assert MASK not in result.trace.event_token
        if left:
            return
    pytest.fail("no salt made the toy predict [MASK]")


def test_on_step_streams_the_canvas():
    views = []
    result = toy_decode([PROMPTS[0]], SMALL, loop="host", on_step=views.append)
    assert [view.step for view in views] == list(range(12))
    assert [int(view.fresh.sum()) for view in views] == [2] * 12
    masks = [int((view.state == MASKED).sum()) for view in views]
    assert masks == list(range(22, -1, -2))
    np.testing.assert_array_equal(views[-1].tokens, result.tokens)
    assert (views[0].tokens == MASK).sum() == 22, "views must not change after the step"


def test_the_host_runs_as_few_programs_as_it_can(monkeypatch):
    programs = []

    def counted(function, **options):
        compiled = own_jit(function, **options)
        return lambda *arguments: (programs.append(0), compiled(*arguments))[1]

    for module in (runner, host_runner):
        monkeypatch.setattr(module, "own_jit", counted)
    config = SMALL.replace(gen_length=16)  # a shape that no other test has compiled
    whole = toy_decode([PROMPTS[0]], config, loop="host")
    assert len(programs) == whole.nfe[0]
    config, programs = with_ids(config, CONFIG), []
    parts = decode(in_parts(toy_denoiser(config)), jnp.int32(0), CONFIG, [PROMPTS[0]], config,
                   loop="host")  # fmt: skip
    assert len(programs) == 2 + parts.nfe[0]  # the first two plan the first step
    np.testing.assert_array_equal(parts.tokens, whole.tokens)


def test_guidance_runs_a_second_batch_without_the_prompt():
    """At scale s the guided output is un + (s + 1)(cond - un); the toy's is exact for integers."""
    config = SMALL.replace(cfg_scale=1.0)
    guided = toy_decode(PROMPTS, config)
    plain = toy_decode(PROMPTS, SMALL)
    assert (guided.tokens != plain.tokens).any()
    assert (guided.nfe == plain.nfe).all()
