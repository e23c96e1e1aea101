"""`generate`, `infill` and `latency_table`: their results, and the input that they refuse."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import llada_jax as lj

GOLDENS = Path(__file__).parents[1] / "goldens"


@pytest.fixture(scope="module")
def model():
    return lj.load(GOLDENS / "llada-gqa")


def test_generate_refuses_an_unknown_backend(model):
    with pytest.raises(ValueError, match="backend is 'tpu'; allowed: 'xla'"):
        lj.generate(model, [[1]], backend="tpu")


def test_result(model):
    config = lj.SamplerConfig.from_flat(gen_length=8, block_length=4, steps=4)
    result = lj.generate(model, [[1, 2, 3], [4]], config, seed=3)
    assert result.tokens.dtype == np.int32 and result.tokens.shape == (2, 11)
    assert result.tokens[1, :2].tolist() == [318, 318], "padded on the left with the pad id"
    assert result.prompt_lengths.tolist() == [3, 1]
    assert result.nfe.tolist() == [4, 4] and result.tpf == 2.0
    assert result.recorded is None and result.seconds > 0
    with pytest.raises(ValueError, match=r"kept no trace; allowed: .* trace=True"):
        result.trace.save("a.npz")
    for row in range(2):
        np.testing.assert_array_equal(result.tokens[row, 3:], result.generated[row])


def test_a_stream_gives_the_results_of_generate(model):
    config = lj.SamplerConfig.from_flat(gen_length=8, block_length=4, steps=4)
    prompts = [[1, 2, 3], [4], [5, 6]]
    together = lj.generate(model, prompts, config, seed=3)
    stream = lj.generate_stream(model, prompts, config, seed=3, places=2, trace=True)
    found = [*stream]
    for row, result in enumerate(found):
        np.testing.assert_array_equal(result.generated[0], together.generated[row])
        assert result.trace.settings["seeds"] == [[3, row]]
        assert result.trace.settings["fingerprint"] == model.fingerprint
    assert stream.useful == 12 / 16, "the last one is alone"


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


def test_on_step_picks_the_host_loop(model):
    config = lj.SamplerConfig.from_flat(gen_length=4, block_length=4, steps=2)
    steps = []
    lj.generate(model, [[1]], config, on_step=lambda view: steps.append(view.step))
    assert steps == [0, 1]


def test_infill_keeps_unmasked_tokens(model):
    config = lj.SamplerConfig.from_flat(gen_length=4, block_length=4, steps=4)
    canvas = [7, 319, 9, 319, 11, 319]
    result = lj.infill(model, [canvas], config)
    assert result.tokens[0, ::2].tolist() == [7, 9, 11]
    assert not (result.tokens == 319).any()


@pytest.fixture(scope="module")
def answered():
    """A run of two rows with a model that has a tokenizer."""
    model = lj.load("tiny")
    prompts = [model.tokenizer.encode_chat([{"role": "user", "content": "2 + 3"}])] * 2
    config = lj.SamplerConfig.from_flat(gen_length=16, block_length=16, steps=2)
    return model, lj.generate(model, prompts, config)


def test_text_stops_before_the_first_end(answered):
    model, result = answered
    end, other = model.config.eos_id, 300
    rows = [np.array([other, end, other]), np.array([other, other])]
    result = replace(result, generated=rows)
    assert [row.tolist() for row in result.answers] == [[other], [other, other]]
    assert result.text == [model.tokenizer.decode(row) for row in ([other], [other, other])]


def test_text_of_a_run(answered):
    model, result = answered
    assert len(result.text) == 2 and result.text == [*map(model.tokenizer.decode, result.answers)]


def test_text_of_an_infilled_canvas_is_complete(answered):
    model, _ = answered
    canvas = [300, model.config.mask_id, 301]
    result = lj.infill(
        model, [canvas], lj.SamplerConfig.from_flat(gen_length=4, block_length=4, steps=4)
    )
    assert len(result.answers[0]) == 3
    assert result.text == [model.tokenizer.decode(result.generated[0])]


def test_text_needs_a_tokenizer(model):
    config = lj.SamplerConfig.from_flat(gen_length=4, block_length=4, steps=1)
    result = lj.generate(model, [[1]], config)
    with pytest.raises(ValueError, match="the model has no tokenizer; allowed"):
        _ = result.text


def test_fused_attention_is_a_separate_backend(model):
    sampler = lj.SamplerConfig.from_flat(cache="dual", threshold=0.9, gen_length=16, block_length=8)
    ours, fused = (
        lj.generate(model, [[5, 6, 7, 8]], sampler, backend=backend)
        for backend in ("xla", "xla_fused")
    )
    assert fused.generated[0].tolist() == ours.generated[0].tolist()
    with pytest.raises(ValueError, match="'xla', 'xla_fused', 'litert', 'qnn'"):
        lj.generate(model, [[5, 6]], sampler, backend="fused")
