"""Scoring only what a step may decide changes no token, and scores less where a policy can skip."""

import numpy as np
import pytest

from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.trace import Event
from tests.sampler.rules.test_staged import SLIDING as STAGED
from tests.sampler.test_revise import EDIT, WINO
from tests.sampler.toy import toy_decode
from tests.sampler.windows.test_multi_block import PROMPTS, SLIDING

THRESHOLD = SamplerConfig.from_flat(
    gen_length=16, block_length=8, steps=16, cache="dual", threshold=0.3
)
CASES = {
    "threshold": (THRESHOLD, Event.COMMIT),
    "staged": (STAGED, Event.REPLACE),
    "wino": (WINO.replace(wino_accept=0.2, wino_verify=0.6), Event.REMASK),
    "token_edit": (EDIT.replace(edit_unmask=0.2, edit_replace=0.3), Event.REPLACE),
    "drafts": (SLIDING, Event.AHEAD),
}
"""Settings, and what they are for."""
QUICK = ("threshold",)
MEASURE_WHOLE_BLOCKS = ("wino", "token_edit")
"""Until a block is finished, they ask about its committed tokens in every step, too."""


@pytest.mark.parametrize(
    "policy",
    [pytest.param(policy, marks=[] if policy in QUICK else pytest.mark.slow) for policy in CASES],
)
def test_tokens_are_those_of_scoring_whole_blocks(policy):
    config, shown = CASES[policy]
    some, whole = (
        toy_decode(PROMPTS, config.replace(selective_logits=selective), salt=6, loop="host")
        for selective in (True, False)
    )
    assert some.trace.count(shown).sum() > 0, f"the case shows no {shown.name}"
    np.testing.assert_array_equal(some.tokens, whole.tokens)
    np.testing.assert_array_equal(some.nfe, whole.nfe)
    skips = policy not in MEASURE_WHOLE_BLOCKS
    assert (some.trace.head_rows.sum() < whole.trace.head_rows.sum()) == skips
