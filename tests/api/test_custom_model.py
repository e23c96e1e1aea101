"""A model of a user-defined architecture is decoded, streamed, stepped and scored like others."""

import jax
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.model.forward import cache_for
from llada_jax.model.forward import forward_rows as forward
from llada_jax.model.head import logits_of
from tests.api.user_models.mixer import mixer

PROMPTS = [[3, 1, 4, 1, 5], [9, 2]]
CONFIG = lj.SamplerConfig.from_flat(gen_length=16, block_length=8, threshold=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["dual", "none", "blockwise"])
def test_both_loops_and_any_batch_decode_alike(cache):
    model, config = mixer(), CONFIG.replace(cache=cache)
    together = lj.generate(model, PROMPTS, config, loop="compiled")
    assert not (together.tokens == model.config.mask_id).any()
    for row, prompt in enumerate(PROMPTS):
        alone = lj.generate(model, [prompt], config, loop="host")
        np.testing.assert_array_equal(alone.generated[0], together.generated[row])


def test_rows_see_the_cached_keys_and_values():
    """With one token per block, the cache contains all tokens of earlier blocks."""
    model, config = mixer(), CONFIG.replace(block_length=1, gen_length=8, threshold=None)
    cached = lj.generate(model, PROMPTS, config.replace(cache="blockwise"), trace=True).trace
    assert cached.cache_length[-1].tolist() == [5 + 7 - 1, 2 + 7 - 1]


def test_rules_that_measure_and_steps_work():
    model = mixer(1)
    staged = CONFIG.replace(threshold=None, accept="staged", theta_visible=0.3, theta_stable=0.6)
    assert lj.generate(model, PROMPTS, staged).nfe.min() > 0
    decoding, state = lj.start(model, PROMPTS, CONFIG)
    state, _ = jax.jit(lj.step)(decoding, state)
    assert state.nfe.tolist() == [1, 1]


@pytest.mark.slow
def test_noise_and_streams_work():
    model = mixer(1)
    sampled = CONFIG.replace(temperature=0.5)
    expected = lj.generate(model, PROMPTS, sampled, seed=[1, 2])
    for index, result in enumerate(lj.generate_stream(model, PROMPTS, sampled, seed=[1, 2])):
        np.testing.assert_array_equal(result.generated[0], expected.generated[index])


@pytest.mark.slow
def test_tasks_are_evaluated():
    tiny = lj.load("tiny")
    config = tiny.config
    model = lj.Model.custom(
        config,
        tiny.params,
        forward_rows=lambda params, rows, cache: forward(params, config, rows, cache),
        logits=logits_of,
        empty_cache=lambda params, batch, length: cache_for(params, config, batch, length),
        tokenizer=tiny.tokenizer,
    )
    sampler = lj.SamplerConfig.from_flat(gen_length=16, block_length=16, threshold=0.9)
    asked = {"task": "word_problems", "sampler": sampler, "items": 2, "seed": 1, "progress": False}
    assert lj.evaluate(model, **asked).right == lj.evaluate(tiny, **asked).right


def test_unsupported_uses_of_a_custom_model_give_one_sentence():
    model = mixer()
    assert repr(model) == "Model(family mixer, 3,584 parameters, custom)"
    with pytest.raises(ValueError, match="backend is 'litert'; allowed for a custom model: 'xla'"):
        lj.generate(model, PROMPTS, CONFIG, backend="litert")
    with pytest.raises(ValueError, match="logits is None; allowed: a function"):
        mixer(logits=None)
    for function in (lj.tiled, lambda model: lj.forward(model, PROMPTS[:1])):
        with pytest.raises(ValueError, match="custom"):
            function(model)
