"""The public API: what it gives, and what it refuses."""

from pathlib import Path

import numpy as np
import pytest

import llada_jax as lj

GOLDENS = Path(__file__).parent / "goldens"


@pytest.fixture(scope="module")
def model():
    return lj.load(GOLDENS / "llada-gqa")


def test_forward_gives_float32_logits(model):
    logits = lj.forward(model, [[1, 2, 3], [4, 5, 6]])
    assert logits.shape == (2, 3, 320) and logits.dtype == np.float32


def test_forward_with_a_block_length_is_block_causal(model):
    tokens = np.arange(1, 13)[None]
    changed = np.where(np.arange(12) < 8, tokens, 300)
    for block_length, sees_changes in ((4, False), (8, False), (12, True), (None, True)):
        one, other = (lj.forward(model, t, block_length=block_length) for t in (tokens, changed))
        assert bool((one[:, :8] != other[:, :8]).any()) == sees_changes


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        ([[1, 320]], {}, "tokens span 1 to 320; allowed: 0 to 319"),
        ([[-1]], {}, "tokens span -1 to -1; allowed"),
        ([1, 2], {}, r"tokens have shape \(2,\); allowed: \[B, L\]"),
        ([[]], {}, r"tokens have shape \(1, 0\); allowed"),
        ([[0.5]], {}, "tokens have dtype float32; allowed: integers"),
        ([[1]], {"block_length": 0}, "block_length is 0; allowed: 1 or more"),
    ],
)
def test_forward_refuses(model, tokens, options, message):
    with pytest.raises(ValueError, match=message):
        lj.forward(model, tokens, **options)


def test_generate_refuses_an_unknown_backend(model):
    with pytest.raises(ValueError, match="backend is 'tpu'; allowed: 'xla'"):
        lj.generate(model, [[1]], backend="tpu")


def test_result(model):
    config = lj.SamplerConfig(gen_length=8, block_length=4, steps=4)
    result = lj.generate(model, [[1, 2, 3], [4]], config, seed=3)
    assert result.tokens.dtype == np.int32 and result.tokens.shape == (2, 11)
    assert result.tokens[1, :2].tolist() == [318, 318], "padded on the left with the pad id"
    assert result.prompt_lengths.tolist() == [3, 1]
    assert result.nfe.tolist() == [4, 4] and result.tpf == 2.0
    assert result.trace is None and result.seconds > 0
    for row in range(2):
        np.testing.assert_array_equal(result.tokens[row, 3:], result.generated[row])


def test_a_table_of_a_backend_goes_into_the_sampler(model):
    table = lj.latency_table(model, [4, 8], canvas=16, repeats=1)
    assert table.rows == (4, 8)
    config = lj.SamplerConfig.preset(
        "llada_cpp", gen_length=8, block_length=4, steps=8, latency_table=table
    )
    assert config.latency_table is table


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([8, 4], {}, r"rows is \[8, 4\]; allowed: ascending, from 1 on"),
        ([8, 32], {"canvas": 16}, r"rows is \[8, 32\]; allowed: up to canvas \(16\)"),
        ([8], {"canvas": 4096}, r"canvas is 4096; allowed: up to \d+ \(the model's max_length\)"),
        ([8], {"canvas": 16, "repeats": 0}, "repeats is 0; allowed: 1 or more"),
        ([8], {"canvas": 16, "backend": "tpu"}, "backend is 'tpu'; allowed: 'xla'"),
    ],
)
def test_a_table_refuses(model, rows, options, message):
    with pytest.raises(ValueError, match=message):
        lj.latency_table(model, rows, **options)


def test_on_step_picks_the_host_loop(model):
    config = lj.SamplerConfig(gen_length=4, block_length=4, steps=2)
    steps = []
    lj.generate(model, [[1]], config, on_step=lambda view: steps.append(view.step))
    assert steps == [0, 1]


def test_infill_keeps_what_is_there(model):
    config = lj.SamplerConfig(gen_length=4, block_length=4, steps=4)
    canvas = [7, 319, 9, 319, 11, 319]
    result = lj.infill(model, [canvas], config)
    assert result.tokens[0, ::2].tolist() == [7, 9, 11]
    assert not (result.tokens == 319).any()
