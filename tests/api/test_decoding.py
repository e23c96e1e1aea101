"""`generate`, `infill` and `latency_table`: their results, and the input that they refuse."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import llada_jax as lj

GOLDENS = Path(__file__).parents[1] / "goldens"


CONFIG = lj.SamplerConfig.from_flat(gen_length=8, block_length=4, steps=4)
PROMPTS = [[1, 2, 3], [4], [5, 6]]


@pytest.fixture(scope="module")
def model():
    return lj.load(GOLDENS / "llada-gqa")


@pytest.fixture(scope="module")
def result(model):
    """A run that several tests look at, since its program takes seconds to compile."""
    return lj.generate(model, PROMPTS, CONFIG, seed=3, top_logprobs=3)


@pytest.fixture(scope="module")
def tokenizer():
    return lj.load("tiny").tokenizer


def test_generate_refuses_an_unknown_backend(model):
    with pytest.raises(ValueError, match="backend is 'tpu'; allowed: 'xla'"):
        lj.generate(model, [[1]], backend="tpu")


def test_result(result):
    assert result.tokens.dtype == np.int32 and result.tokens.shape == (3, 11)
    assert result.tokens[1, :2].tolist() == [318, 318], "padded on the left with the pad id"
    assert result.prompt_lengths.tolist() == [3, 1, 2]
    assert result.nfe.tolist() == [4, 4, 4] and result.tpf == 2.0
    assert result.recorded is None and result.seconds > 0
    with pytest.raises(ValueError, match=r"kept no trace; allowed: .* trace=True"):
        result.trace.save("a.npz")
    for row in range(3):
        np.testing.assert_array_equal(result.tokens[row, 3:], result.generated[row])


def test_a_stream_gives_the_results_of_generate(model, result):
    options = {"seed": 3, "trace": True, "top_logprobs": 3}
    stream = lj.generate_stream(model, PROMPTS, CONFIG, places=2, **options)
    found = [*stream]
    for row, one in enumerate(found):
        np.testing.assert_array_equal(one.generated[0], result.generated[row])
        np.testing.assert_array_equal(one.top_logprobs[0].ids, result.top_logprobs[row].ids)
        assert one.trace.settings["seeds"] == [[3, row]]
        assert one.trace.settings["fingerprint"] == model.fingerprint
    assert stream.useful == 12 / 16, "the last one is alone"


@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.9, marks=pytest.mark.slow)])
def test_top_logprobs_are_the_models_in_the_forward_that_committed_the_token(model, temperature):
    config = CONFIG.replace(temperature=temperature)
    result = lj.generate(model, PROMPTS, config, seed=3, trace=True, top_logprobs=3)
    tokens, steps = (a[0, :11] for a in (result.trace.tokens, result.trace.commit_steps()))
    canvases = np.where(steps < np.arange(4)[:, None], tokens, model.config.mask_id)
    logits = lj.forward(model, canvases).at[..., model.config.mask_id].set(-np.inf)
    exact = jax.nn.log_softmax(logits)[steps[3:], np.arange(3, 11)]
    logprobs, ids = jax.lax.top_k(exact, 3)
    found = result.top_logprobs[0]
    np.testing.assert_array_equal(found.ids, ids)
    np.testing.assert_allclose(found.logprobs, logprobs, atol=1e-5)
    assert (found.ids[:, 0] == tokens[3:]).all() == (temperature == 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"places": 0}, "places is 0; allowed: 1 or more"),
        ({"together": 0}, "together is 0; allowed: 1 or more"),
        ({"backend": "tpu"}, "backend is 'tpu'; allowed: 'xla'"),
        ({"prompts": [[1], []]}, "prompt 1 is empty"),
        ({"seed": [1, 2]}, "2 seeds were given; allowed: one, or 1"),
    ],
)
def test_a_stream_refuses_bad_input_when_called(model, options, message):
    with pytest.raises(ValueError, match=message):
        lj.generate_stream(model, **{"prompts": [[1]], **options})


def test_a_table_is_measured_with_the_model(model):
    table = lj.latency_table(model, [4], canvas=16, repeats=1)
    assert table.rows == (4,) and table.ms[0] > 0


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([8, 4], {}, r"rows is \[8, 4\]; allowed: ascending, from 1 on"),
        ([8, 32], {"canvas": 16}, r"rows is \[8, 32\]; allowed: up to canvas \(16\)"),
        (
            [8],
            {"canvas": 4096},
            r"canvas has 4096 tokens; allowed: up to \d+ \(the model",
        ),
        ([8], {"canvas": 16, "repeats": 0}, "repeats is 0; allowed: 1 or more"),
        ([8], {"canvas": 16, "backend": "tpu"}, "backend is 'tpu'; allowed: 'xla'"),
    ],
)
def test_a_table_refuses(model, rows, options, message):
    with pytest.raises(ValueError, match=message):
        lj.latency_table(model, rows, **options)


def test_infill_keeps_unmasked_tokens(model, tokenizer):
    canvas = [7, 319, 9, 319, 11, 319]
    result = lj.infill(model.replace(tokenizer=tokenizer), [canvas], CONFIG)
    assert result.tokens[0, ::2].tolist() == [7, 9, 11]
    assert not (result.tokens == 319).any()
    assert len(result.answers[0]) == 6
    assert result.text == [tokenizer.decode(result.generated[0])], "complete"


def test_text_stops_before_the_first_end(result, tokenizer):
    (end,), other = result.ends, 300
    rows = [np.array([other, end, other]), np.array([other, other])]
    result = replace(result, generated=rows, to_text=tokenizer.decode)
    assert [row.tolist() for row in result.answers] == [[other], [other, other]]
    assert result.text == [tokenizer.decode(row) for row in ([other], [other, other])]


def test_text_needs_a_tokenizer(result):
    with pytest.raises(ValueError, match="the model has no tokenizer; allowed"):
        _ = result.text
