"""A forward scores the masks of its block and no committed tokens."""

import numpy as np
import pytest

from llada_jax.sampler.config import SamplerConfig
from tests.sampler.toy import toy_decode
from tests.sampler.windows.test_multi_block import PROMPTS

LENGTHS = np.array([len(prompt) for prompt in PROMPTS])
BLOCK = 8


@pytest.mark.parametrize(
    "cache",
    ["dual", *[pytest.param(c, marks=pytest.mark.slow) for c in ("none", "prefix", "blockwise")]],
)
def test_a_forward_scores_the_masks_of_its_block(cache):
    config = SamplerConfig.from_flat(gen_length=16, block_length=BLOCK, cache=cache, threshold=0.3)
    trace = toy_decode(PROMPTS, config, salt=6, loop="host").trace
    place = np.arange(trace.tokens.shape[1]) - LENGTHS[:, None]
    step = np.arange(len(trace.block))[:, None, None]
    masked = (place // BLOCK == trace.block[..., None]) & (trace.commit_steps() >= step)
    assert (masked.sum(axis=2) < BLOCK).any(), "a block is decoded in several forwards"
    np.testing.assert_array_equal(trace.head_rows, masked.sum(axis=2) * (trace.live_rows > 0))
