"""The records of a run: bounded in memory, and the same however a run is divided."""

import numpy as np
import pytest

from llada_jax.sampler import loops
from llada_jax.sampler.config import SamplerConfig
from tests.sampler.toy import toy_decode

PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3], [5, 8], [9, 7, 9]]
CONFIG = SamplerConfig.from_flat(gen_length=8, block_length=4, cache="none", threshold=0.3)


@pytest.fixture(scope="module")
def whole():
    return toy_decode(PROMPTS, CONFIG, loop="compiled", trace="scores")


def assert_same(result, whole):
    np.testing.assert_array_equal(result.tokens, whole.tokens)
    assert result.tpf == whole.tpf
    assert result.trace.same_decoding(whole.trace)
    for name in ("event_step", "event_row", "event_position", "event_kind", "event_token"):
        np.testing.assert_array_equal(getattr(result.trace, name), getattr(whole.trace, name))


@pytest.mark.parametrize("loop", ["compiled", "host"])
def test_a_loop_records_few_steps_at_a_time(loop, whole, monkeypatch):
    recorded = []
    monkeypatch.setattr(loops, "RECORDED_POSITIONS", 2 * len(PROMPTS) * 32)
    monkeypatch.setattr(loops, "_compiled", loops._compiled.__wrapped__)  # of another limit
    steps_of = loops.steps_of

    def observed(records, *others):
        recorded.append(len(records.events))
        return steps_of(records, *others)

    monkeypatch.setattr(loops, "steps_of", observed)
    assert_same(toy_decode(PROMPTS, CONFIG, loop=loop, trace="scores"), whole)
    assert len(recorded) > 1
    assert max(recorded) <= 2
