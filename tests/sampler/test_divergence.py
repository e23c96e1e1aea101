"""Where two runs part, and how close the decision was."""

from dataclasses import replace

import numpy as np
import pytest

from llada_jax.config import SamplerConfig
from llada_jax.sampler.event import Event
from llada_jax.sampler.replay import replay
from tests.sampler.toy import toy_decode

PROMPTS = [[3, 1, 4, 1], [1, 5]]
SAMPLER = SamplerConfig(gen_length=8, block_length=8, steps=8)


@pytest.fixture(scope="module")
def kept():
    return toy_decode(PROMPTS, SAMPLER, loop="host", trace="margins").trace


def test_margins_change_nothing_else(kept):
    plain = toy_decode(PROMPTS, SAMPLER, loop="host", trace="scores").trace
    assert kept.same_decoding(plain) and kept.divergence(plain) is None
    assert replay(kept)["events"] == replay(plain)["events"]
    margins = kept.event_confidence[kept.event_kind == Event.MARGIN]
    assert (margins > 0).all() and len(margins) == kept.head_rows.sum()


def test_the_first_token_that_differs_is_found_with_its_margin(kept):
    commits = np.flatnonzero(kept.event_kind == Event.COMMIT)
    tokens = kept.event_token.copy()
    tokens[commits[3:]] += 1
    found = kept.divergence(replace(kept, event_token=tokens))
    step, position = kept.event_step[commits[3]], kept.event_position[commits[3]]
    assert found[:4] == (step, 1, position, (tokens[commits[3]] - 1, tokens[commits[3]]))
    place = (kept.event_step == step) & (kept.event_row == 1) & (kept.event_position == position)
    margin = kept.event_confidence[place & (kept.event_kind == Event.MARGIN)]
    assert found.margin == margin[0]


def test_of_other_positions_the_confidences_tell(kept):
    first = np.flatnonzero((kept.event_step == 0) & (kept.event_row == 0))
    commit = first[kept.event_kind[first] == Event.COMMIT][0]
    rival = first[kept.event_kind[first] == Event.SCORE][0]
    kinds = kept.event_kind.copy()
    kinds[[commit, rival]] = kinds[[rival, commit]]
    found = kept.divergence(replace(kept, event_kind=kinds))
    assert found.step == 0 and found.tokens[0] == found.tokens[1]
    gap = abs(kept.event_confidence[commit] - kept.event_confidence[rival])
    assert found.margin == pytest.approx(gap)


def test_what_cannot_be_compared_is_refused(kept):
    plain = toy_decode(PROMPTS, SAMPLER, loop="host", trace=True).trace
    with pytest.raises(ValueError, match="has no margins; allowed"):
        plain.divergence(kept)
    with pytest.raises(ValueError, match="the traces are of prompts of"):
        kept.divergence(replace(kept, prompt_lengths=np.array([1, 2])))
