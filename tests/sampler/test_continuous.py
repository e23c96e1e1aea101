"""Continuous batches: each prompt decodes as alone, whatever shares the batch with it, and when."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llada_jax.config import SamplerConfig
from llada_jax.sampler.continuous import Places
from llada_jax.sampler.generate import Result
from llada_jax.sampler.prompts import with_ids
from llada_jax.sampler.run import checked_run
from llada_jax.types import Denoiser
from tests.sampler.rows_alone import assert_row_is
from tests.sampler.test_faults import ONE_BY_ONE, poisoned
from tests.sampler.toy import CONFIG, toy_decode, toy_denoiser

LENGTHS = {"gen_length": 16, "block_length": 8, "steps": 16}
STAGED = SamplerConfig.preset("staged", **LENGTHS, theta_visible=0.2, theta_stable=0.3)
RULES = {
    "threshold": SamplerConfig(**LENGTHS, threshold=0.3, cache="dual", temperature=0.5),
    "staged": STAGED.replace(cache="blockwise", eos_early_stop=True),
}
PROMPTS = st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=7), min_size=1, max_size=7)
"""Canvases of one padded length, so of one program for each number of places."""


def streamed(
    prompts: Sequence[Sequence[int]],
    config: SamplerConfig,
    places: int,
    denoiser: Denoiser | None = None,
    **options: Any,
) -> tuple[Places, list[Result]]:
    config = with_ids(config, CONFIG)
    denoiser = denoiser or toy_denoiser(config)
    run = checked_run(denoiser, jnp.int32(1), CONFIG, prompts, config, **options)
    taken = Places(run, places, trace=True)
    return taken, list(taken.results())


@pytest.mark.parametrize(
    ("rule", "loop"),
    [
        ("staged", "compiled"),
        ("threshold", "host"),
        pytest.param("staged", "host", marks=pytest.mark.slow),
        pytest.param("threshold", "compiled", marks=pytest.mark.slow),
    ],
)
@settings(max_examples=8)
@given(prompts=PROMPTS, seed=st.integers(0, 1000), places=st.integers(1, 4))
def test_each_result_is_that_of_the_prompt_alone(rule, loop, prompts, seed, places):
    seeds = [seed + place for place in range(len(prompts))]
    taken, found = streamed(prompts, RULES[rule], places, seed=seeds, loop=loop)
    for prompt, own, result in zip(prompts, seeds, found, strict=True):
        alone = toy_decode([prompt], RULES[rule], salt=1, seed=[own], loop="host")
        assert_row_is(result, 0, alone)
        assert result.trace.same_decoding(alone.trace)
        np.testing.assert_array_equal(result.tokens, alone.tokens)
        assert result.tpf == alone.tpf
    assert taken.useful == sum(int(result.nfe[0]) for result in found) <= taken.offered
