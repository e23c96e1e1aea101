"""Every span fits a bucket, for all windows, prompts and blocks."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.config import LatencyTable, Parity
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.spec import StepSpec, layout_of, sequence_bounds
from tests.sampler.toy import BLOCK_CAUSAL, CONFIG, toy_decode

SHIFTED = CONFIG.replace(shift_logits=True)


@given(
    cache=st.sampled_from(["none", "prefix", "dual", "blockwise"]),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=3),
    block_length=st.sampled_from([4, 8, 16]),
    n_blocks=st.integers(1, 4),
    infill=st.booleans(),
    model=st.sampled_from([CONFIG, BLOCK_CAUSAL, CONFIG.replace(shift_logits=True)]),
)
def test_buckets_are_ascending_and_within_the_canvas(
    cache, lengths, block_length, n_blocks, infill, model
):
    gen_length = block_length * n_blocks
    config = SamplerConfig.from_flat(
        gen_length=gen_length, block_length=block_length, steps=gen_length, cache=cache
    )
    layout = layout_of(np.array(lengths, np.int32), config, model, infill=infill)
    buckets = StepSpec(model, config).buckets(layout)
    assert list(buckets) == sorted(set(buckets))
    longest = max(lengths) + (0 if infill else gen_length)
    assert longest <= layout.length < longest + 32
    assert buckets[-1] <= layout.length
    if cache != "blockwise" or infill:
        assert buckets[-1] == layout.length


@pytest.mark.slow
def test_padding_beyond_a_span_changes_nothing():
    """The longest row of a batch decides the bucket; the short row's result does not change."""
    config = SamplerConfig.from_flat(gen_length=8, block_length=4, steps=8, cache="blockwise")
    short = [7, 7]
    for company in ([1], list(range(20))):
        together = toy_decode([short, company], config)
        alone = toy_decode([short], config)
        np.testing.assert_array_equal(together.generated[0], alone.generated[0])


@pytest.mark.parametrize(
    ("settings", "first", "end", "blocks", "floor"),
    [
        ({}, 8, 40, [1, 1, 2], 16),
        ({"last_block": "cut"}, 8, 33, [1, 1, 2], 16),
        ({"block_origin": "prompt"}, 13, 37, [-1, 0, 0], 21),
        ({"block_origin": "prompt", "last_block": "cut"}, 13, 33, [-1, 0, 0], 21),
    ],
)
def test_blocks_begin_on_the_canvas_or_at_the_prompts_end(settings, first, end, blocks, floor):
    parity = Parity(**settings)
    bounds = sequence_bounds(np.array([13], np.int32), 20, 8, 8, parity, infill=False)
    assert [int(bound[0]) for bound in bounds] == [first, end]
    spec = StepSpec(BLOCK_CAUSAL, SamplerConfig(parity=parity))
    state: Any = SimpleNamespace(origin=np.array([first], np.int32))
    assert spec.model_blocks(state, np.array([[12, 13, 16]])).tolist() == [blocks]
    assert spec.block_floor(state, np.array([22])).tolist() == [floor]
    assert spec.block_floor(state, np.array([0])).tolist() == [0]


def test_any_length_has_a_cut_last_block():
    config = SamplerConfig.preset("wedlm", gen_length=20, block_length=8)
    assert (config.n_blocks, config.steps, config.steps_per_block) == (3, 20, 7)


@pytest.mark.slow
def test_a_cut_last_block_leaves_the_others_as_they_are():
    settings = dict(block_length=8, steps=24, cache="blockwise", last_block="cut")
    cut, whole = (
        toy_decode([[3, 1, 4], [1]], SamplerConfig.from_flat(gen_length=length, **settings))
        for length in (20, 24)
    )
    for short, long in zip(cut.generated, whole.generated, strict=True):
        assert len(short) == 20
        np.testing.assert_array_equal(short[:16], long[:16])


def test_prefill_is_as_long_as_the_longest_prompt_needs():
    config = SamplerConfig.from_flat(gen_length=32, block_length=8, steps=32, cache="blockwise")
    layout = layout_of(np.array([5, 11], np.int32), config, CONFIG, infill=False)
    assert StepSpec(CONFIG, config).buckets(layout) == (8, 16, 40)
    assert StepSpec(SHIFTED, config).buckets(layout) == (9, 17, 41)
    assert layout.n_blocks == 4


def test_programs_of_a_shifted_model_hold_the_row_before_the_window():
    """That row counts towards the bucket, the table and the budget."""
    config = SamplerConfig.preset("multi_block", gen_length=64, block_length=8, steps=64)
    layout = layout_of(np.array([5], np.int32), config, CONFIG, infill=False)
    for settings, plain, with_row in (
        ({}, (8, 16, 32, 64, 72), (9, 16, 32, 64, 73)),
        ({"row_budget": 12}, (8, 12, 16, 32, 40), (9, 12, 16, 32, 41)),
        (
            {"latency_table": LatencyTable(rows=(12, 24), ms=(1.0, 1.5))},
            (12, 24, 40),
            (12, 24, 41),
        ),
    ):
        changed = config.replace(**settings)
        assert StepSpec(CONFIG, changed).buckets(layout) == plain
        assert StepSpec(SHIFTED, changed).buckets(layout) == with_row


@pytest.mark.parametrize(
    "model",
    [pytest.param(BLOCK_CAUSAL, marks=pytest.mark.slow), SHIFTED.replace(block_length=8)],
)
def test_parts_of_a_models_block_see_the_whole_block(model):
    """With and without cached blocks, for decisions per sub-block and per block."""
    config = SamplerConfig.from_flat(gen_length=16, block_length=4, steps=16)
    prompts = [[1, 2, 3], list(range(9))]
    whole = toy_decode(prompts, config, model)
    cached = toy_decode(prompts, config.replace(cache="blockwise"), model)
    np.testing.assert_array_equal(cached.generated, whole.generated)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_length": 16}, "block_length is 16; allowed: a divisor of the model's block, 8"),
        ({"block_length": 4, "accept": "token_edit", "rescore": "token"}, "a part of the model's"),
        ({"block_length": 4, "window": "multi_block", "threshold": 0.2}, "a part of the model's"),
        ({"block_length": 8, "window": "multi_block", "threshold": 0.2}, "the block before predi"),
    ],
)
def test_settings_that_a_models_block_does_not_allow(settings, message):
    config = SamplerConfig.from_flat(gen_length=16, cache="blockwise", **settings)
    with pytest.raises(ValueError, match=message):
        toy_decode([[1, 2, 3]], config, SHIFTED.replace(block_length=8))
