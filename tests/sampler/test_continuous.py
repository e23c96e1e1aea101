"""Continuous batches: each prompt decodes as alone, whichever prompts share its batch and when."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.config import Loop
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.continuous import Slots
from llada_jax.sampler.generate import Result, checked_run
from llada_jax.sampler.prompts import with_ids
from llada_jax.types import Denoiser
from tests.sampler.test_faults import ONE_BY_ONE, POISONED, poisoned
from tests.sampler.toy import CONFIG, toy_decode, toy_denoiser

LENGTHS = {"gen_length": 16, "block_length": 8, "steps": 16}
STAGED = SamplerConfig.preset("staged", **LENGTHS, theta_visible=0.2, theta_stable=0.3)
RULES = {
    "drawn": SamplerConfig.from_flat(**LENGTHS, threshold=0.3, cache="dual", temperature=0.5),
    "staged": STAGED.replace(eos_early_stop=True),
}
SHORT_PROMPTS = st.lists(st.integers(0, 20), min_size=1, max_size=7)
"""Canvases of one padded length, so that there is one program per batch size."""
UNEQUAL = [[3, 1, 4], [9, 2], list(range(20)), [6, 5, 3, 5, 8], [7]]


def places_for(
    prompts: Sequence[Sequence[int]],
    config: SamplerConfig,
    places: int,
    denoiser: Denoiser | None = None,
    params: Any = 1,
    **options: Any,
) -> Slots:
    config = with_ids(config, CONFIG)
    denoiser = denoiser or toy_denoiser(config)
    return Slots(checked_run(denoiser, params, CONFIG, prompts, config, **options), places)


def assert_same(found: Result, expected: Result) -> None:
    assert found.trace.same_decoding(expected.trace)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.nfe, expected.nfe)
    assert (found.tpf, found.ends) == (expected.tpf, expected.ends)
    for ours, theirs in zip(found.generated, expected.generated, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def assert_each_is_as_alone(rule: str, loop: Loop, prompts: Any, seed: int, places: int) -> None:
    seeds = [seed + place for place in range(len(prompts))]
    taken = places_for(prompts, RULES[rule], places, seed=seeds, loop=loop)
    found = list(taken.results(trace=True))
    for prompt, own, result in zip(prompts, seeds, found, strict=True):
        alone = toy_decode([prompt], RULES[rule], salt=1, seed=[own], loop="compiled")
        assert_same(result, alone)
    assert taken.useful == sum(int(result.nfe[0]) for result in found) <= taken.offered


@settings(max_examples=4)
@given(prompts=st.lists(SHORT_PROMPTS, min_size=1, max_size=7), seed=st.integers(0, 1000))
def test_each_result_equals_the_prompt_decoded_alone(prompts, seed):
    assert_each_is_as_alone("drawn", "compiled", [*prompts, [5], [6, 7]], seed, places=2)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("loop", ["compiled", "host"])
@settings(max_examples=12)
@given(
    prompts=st.lists(SHORT_PROMPTS, min_size=1, max_size=7),
    seed=st.integers(0, 1000),
    places=st.integers(1, 4),
)
def test_any_number_of_batch_slots(rule, loop, prompts, seed, places):
    assert_each_is_as_alone(rule, loop, prompts, seed, places)


@pytest.mark.slow
def test_prompts_of_different_lengths_and_several_per_result():
    together = toy_decode(UNEQUAL, RULES["staged"], salt=1, loop="compiled")
    found = list(places_for(UNEQUAL, RULES["staged"], 2).results(2, trace=True))
    assert [len(result.nfe) for result in found] == [2, 2, 1]
    for first, result in zip((0, 2, 4), found, strict=True):
        for row, tokens in enumerate(result.generated):
            np.testing.assert_array_equal(tokens, together.generated[first + row])
            assert result.nfe[row] == together.nfe[first + row]
    assert_same(found[0], toy_decode(UNEQUAL[:2], RULES["staged"], salt=1, loop="host"))


def test_results_arrive_in_the_order_of_the_prompts():
    taken = places_for(UNEQUAL, ONE_BY_ONE, 2, loop="host")
    (first,) = islice(taken.results(), 1)
    assert first.prompt_lengths.tolist() == [3]
    assert taken.offered == taken.useful == 2 * ONE_BY_ONE.gen_length


@pytest.mark.parametrize("loop", ["compiled", pytest.param("host", marks=pytest.mark.slow)])
def test_a_bad_canvas_ends_the_stream_at_its_turn(loop):
    prompts = [[3, 1], [4, 1], [9, 2], [5, 3], [6, 5]]
    bad = poisoned({9: 3, 5: 1})
    results = places_for(prompts, ONE_BY_ONE, 2, POISONED, bad, loop=loop).results()
    assert [len(next(results).generated[0]) for _ in range(2)] == [12, 12]
    message = (
        r"infinite \(canvas 2: forward 3, position \d+; canvas 3: forward 1, position \d+; all"
    )
    with pytest.raises(FloatingPointError, match=message):
        next(results)
