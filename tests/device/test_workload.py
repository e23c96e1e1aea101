"""Forwards of the baselines and of traces."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.device.workload import (
    Forward,
    autoregressive,
    blockwise,
    distinct,
    from_trace,
    rounded,
    vanilla,
)
from tests.device.small import SHAPE


def trace(**changes):
    """Two forwards of two batch rows; the second row needs the first one alone."""
    model = {name: getattr(SHAPE, name) for name in SHAPE.__dataclass_fields__}
    fields = {
        "rows": np.array([40, 32]),
        "live_rows": np.array([[40, 36], [32, 0]]),
        "refreshed": np.array([[0, 0], [2, 0]]),
        "head_rows": np.array([[32, 32], [9, 0]]),
        "cache_length": np.array([[0, 0], [8, 0]]),
        "prompt_lengths": np.array([8, 4]),
        "event_row": np.repeat([0, 1], [33, 32]),
        "event_position": np.array([*range(8, 40), 12, *range(4, 36)]),
        "settings": {"model": model, "sampler": {"refresh": "worker", "rescore": "token"}},
    }
    return SimpleNamespace(**{**fields, **changes})


def test_a_trace_gives_its_forwards_golden():
    workload = from_trace(trace(), SHAPE)
    assert workload.forwards == (Forward(40, 0, 32), Forward(32, 32, 9, 2))
    assert (workload.prompt_length, workload.tokens, workload.canvas) == (8, 32, 40)
    other = from_trace(trace(), SHAPE, row=1)
    assert other.forwards == (Forward(40, 0, 32),) and other.canvas == 36


def test_a_row_of_a_batch_takes_the_bucket_that_it_would_take_alone():
    alone = trace(live_rows=np.array([[40, 32], [32, 0]]))
    assert from_trace(alone, SHAPE, row=1).forwards == (Forward(32, 0, 32),)


@pytest.mark.parametrize(
    ("sampler", "rows"),
    [
        ({"refresh": "worker", "rescore": "shadow"}, 4),
        ({"refresh": "rows", "rescore": "shadow"}, 0),
        ({}, 0),
    ],
)
def test_only_a_worker_refreshes_beside_the_forward(sampler, rows):
    settings = {**trace().settings, "sampler": sampler}
    assert from_trace(trace(settings=settings), SHAPE).forwards[1].refreshed == rows


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, {"row": 2}, "row is 2; allowed: 0 to 1"),
        ({"settings": {}}, {}, "the trace's model has width None; allowed: 64, or as_if=true"),
        (
            {"live_rows": np.zeros((2, 2), int), "refreshed": np.zeros((2, 2), int)},
            {},
            "the trace has no forwards",
        ),
        (
            {"event_row": np.zeros(292, int), "event_position": np.arange(8, 300)},
            {},
            "canvas is 300 tokens; allowed: up to 256",
        ),
    ],
)
def test_traces_that_do_not_fit_are_named(changes, arguments, message):
    with pytest.raises(ValueError, match=message):
        from_trace(trace(**changes), SHAPE, **arguments)


def test_another_shape_can_be_asked_for():
    wide = SHAPE.replace(width=128)
    with pytest.raises(ValueError, match="has width 64; allowed: 128, or as_if=true"):
        from_trace(trace(), wide)
    assert len(from_trace(trace(), wide, as_if=True).forwards) == 2


@given(st.integers(1, 100), st.sampled_from([32, 64, 128]))
def test_baselines_run_a_forward_for_each_token(prompt, tokens):
    for workload in (vanilla, blockwise, autoregressive):
        found = workload(prompt, tokens)
        assert len(found.forwards) == found.tokens == tokens
        assert found.tokens_per_forward == 1
    assert {f.rows for f in vanilla(prompt, tokens).forwards} == {prompt + tokens}


def test_the_blockwise_baseline_golden():
    forwards = blockwise(10, 96).forwards
    assert forwards[0] == Forward(42, 0, 32)
    assert forwards[1] == Forward(32, 32, 32)
    assert forwards[32] == Forward(64, 32, 32)  # the block before, once more
    assert forwards[33] == Forward(32, 64, 32)
    assert dict(distinct(forwards))[Forward(32, 96, 32)] == 31


def test_an_autoregressive_run_is_a_prefill_and_single_rows():
    first, *later = autoregressive(10, 4).forwards
    assert first == Forward(10, 0, 1)
    assert {forward.rows for forward in later} == {1}


@given(st.integers(0, 1000))
def test_caches_round_up_to_buckets(cache):
    assert rounded(cache) % 32 == 0 and 0 <= rounded(cache) - cache < 32
