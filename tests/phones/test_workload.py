"""Workloads: the forwards of traces and of the baselines."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llada_jax.phones.workload import (
    Forward,
    autoregressive,
    blockwise,
    from_trace,
    round_cache,
    vanilla,
)
from llada_jax.sampler.config import SamplerConfig
from tests.phones.small import SHAPE
from tests.sampler.toy import Worker, toy_decode


def trace(**changes):
    """Returns two forwards of two batch rows; the second row is only in the first forward."""
    model = {name: getattr(SHAPE, name) for name in SHAPE.__dataclass_fields__}
    fields = {
        "rows": np.array([40, 32]),
        "live_rows": np.array([[40, 36], [32, 0]]),
        "refreshed": np.array([[0, 0], [2, 0]]),
        "head_rows": np.array([[32, 32], [9, 0]]),
        "cache_length": np.array([[0, 0], [8, 0]]),
        "prompt_lengths": np.array([8, 4]),
        "filled": np.array([32, 32]),
        "settings": {"model": model, "sampler": {"refresh": "worker", "rescore": "token"}},
    }
    return SimpleNamespace(**{**fields, **changes})


def test_forwards_of_a_trace():
    workload = from_trace(trace(), SHAPE)
    assert workload.forwards == (Forward(40, 0, 32), Forward(32, 32, 9, 2, 2))
    assert (workload.prompt_length, workload.tokens, workload.canvas) == (8, 32, 40)
    other = from_trace(trace(), SHAPE, row=1)
    assert other.forwards == (Forward(40, 0, 32),) and other.canvas == 36


def test_a_batch_row_has_the_bucket_of_a_run_alone():
    alone = trace(live_rows=np.array([[40, 32], [32, 0]]))
    assert from_trace(alone, SHAPE, row=1).forwards == (Forward(32, 0, 32),)


@pytest.mark.parametrize(
    ("sampler", "rows_and_tokens"),
    [
        ({"refresh": "worker", "rescore": "shadow"}, (4, 2)),
        ({"refresh": "worker", "rescore": "token"}, (2, 2)),
        ({"refresh": "rows", "rescore": "shadow"}, (0, 0)),
        ({}, (0, 0)),
    ],
)
def test_refreshed_rows_are_separate_with_a_worker_only(sampler, rows_and_tokens):
    settings = {**trace().settings, "sampler": sampler}
    forward = from_trace(trace(settings=settings), SHAPE).forwards[1]
    assert (forward.refreshed, forward.rescored) == rows_and_tokens


@pytest.mark.slow
@pytest.mark.parametrize("rescore", ["shadow", "token"])
def test_refreshes_take_equal_rows_and_scores_with_and_without_a_worker(rescore):
    staged = SamplerConfig.from_flat(
        gen_length=24, block_length=8, steps=24, cache="blockwise", accept="staged",
        theta_visible=0.2, theta_stable=0.3, rescore=rescore,
    )  # fmt: skip
    prompts = [[3, 1, 4, 1, 5]]
    by_rows = toy_decode(prompts, staged, salt=3, loop="host").trace
    with Worker() as worker:
        config = staged.replace(refresh="worker")
        by_worker = toy_decode(prompts, config, salt=3, loop="host", worker=worker).trace
    forwards = from_trace(by_worker, SHAPE).forwards
    refreshed, rescored = (np.array(n) for n in zip(*(f[3:] for f in forwards), strict=True))
    np.testing.assert_array_equal(rescored, by_rows.refreshed[:, 0])
    assert rescored.any(), "this test needs a refresh"
    rows, heads = by_worker.live_rows[:, 0] + refreshed, by_worker.head_rows[:, 0] + rescored
    np.testing.assert_array_equal(rows, by_rows.live_rows[:, 0])
    np.testing.assert_array_equal(heads, by_rows.head_rows[:, 0])


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, {"row": 2}, "row is 2; allowed: 0 to 1"),
        (
            {"live_rows": np.zeros((2, 2), int), "refreshed": np.zeros((2, 2), int)},
            {},
            "the trace has no forwards",
        ),
        (
            {"filled": np.array([292, 0])},
            {},
            "canvas is 300 tokens; allowed: up to 256",
        ),
    ],
)
def test_traces_that_do_not_fit_are_refused(changes, arguments, message):
    with pytest.raises(ValueError, match=message):
        from_trace(trace(**changes), SHAPE, **arguments)


def test_a_trace_of_another_shape_is_mentioned_in_the_source():
    other = from_trace(trace(), SHAPE.replace(width=128))
    assert other.forwards == from_trace(trace(), SHAPE).forwards
    assert other.source.endswith("width 64, run as if by this model")


@given(st.integers(1, 100), st.sampled_from([32, 64, 128]))
def test_baselines_run_a_forward_for_each_token(prompt, tokens):
    for workload in (vanilla, blockwise, autoregressive):
        run = workload(prompt, tokens)
        assert len(run.forwards) == run.tokens == tokens
    assert {f.rows for f in vanilla(prompt, tokens).forwards} == {prompt + tokens}


def test_forwards_of_the_blockwise_baseline():
    forwards = blockwise(10, 96).forwards
    assert forwards[0] == Forward(42, 0, 32)
    assert forwards[1] == Forward(32, 32, 32)
    assert forwards[32] == Forward(64, 32, 32)  # with the block before it
    assert forwards[33] == Forward(32, 64, 32)
    assert forwards.count(Forward(32, 96, 32)) == 31


def test_an_autoregressive_run_is_a_prefill_and_single_rows():
    first, *later = autoregressive(10, 4).forwards
    assert first == Forward(10, 0, 1)
    assert {forward.rows for forward in later} == {1}


@given(st.integers(0, 1000))
def test_caches_round_up_to_buckets(cache):
    assert round_cache(cache) % 32 == 0 and 0 <= round_cache(cache) - cache < 32
