"""The public step: jitted, scanned and vmapped, it decodes what `generate` decodes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import llada_jax as lj

CONFIG = lj.SamplerConfig.from_flat(
    gen_length=16, block_length=8, cache="blockwise", threshold=0.9, temperature=0.8
)


@pytest.fixture(scope="module")
def model():
    """One layer of the bundled model, since a program for a step compiles for seconds."""
    tiny = lj.load("tiny")
    config = tiny.config.replace(n_layers=1)
    return lj.Model(config, tiny.params._replace(layers=tiny.params.layers[:1]), tiny.tokenizer)


@pytest.fixture(scope="module")
def prompts(model):
    return [model.tokenizer.encode(text) for text in ("2+2=", "13+4=")]


def generated(state, prompts):
    return [
        np.asarray(state.tokens)[row, len(prompt) :][: CONFIG.gen_length]
        for row, prompt in enumerate(prompts)
    ]


def test_a_scan_decodes_as_generate(model, prompts):
    expected = lj.generate(model, prompts, CONFIG, seed=7)
    decoding, state = lj.start(model, prompts, CONFIG, seed=7)

    @jax.jit
    def eight(decoding, state):
        return jax.lax.scan(lambda state, _: lj.step(decoding, state), state, length=8)

    while not state.done.all():
        state, records = eight(decoding, state)
        assert records.events.shape == (8, *state.tokens.shape)
    for found, tokens in zip(generated(state, prompts), expected.generated, strict=True):
        np.testing.assert_array_equal(found, tokens)
    assert state.nfe.tolist() == expected.nfe.tolist()


def test_states_of_many_seeds_are_stepped_at_once(model, prompts):
    seeds = jax.random.split(jax.random.key(3), 3)
    decoding, _ = lj.start(model, prompts, CONFIG)
    states = jax.vmap(lambda key: lj.start(model, prompts, CONFIG, seed=key)[1])(seeds)
    step = jax.jit(jax.vmap(lj.step, (None, 0)))
    for _ in range(16):
        states, _ = step(decoding, states)
    assert states.done.all()
    for index, key in enumerate(seeds):
        expected = lj.generate(model, prompts, CONFIG, seed=key)
        state = jax.tree.map(lambda leaf, index=index: leaf[index], states)
        for found, tokens in zip(generated(state, prompts), expected.generated, strict=True):
            np.testing.assert_array_equal(found, tokens)


def test_a_key_is_its_seed(model, prompts):
    by_int = lj.generate(model, prompts, CONFIG, seed=5, trace=True)
    by_key = lj.generate(model, prompts, CONFIG, seed=jax.random.key(5), trace=True)
    np.testing.assert_array_equal(by_int.tokens, by_key.tokens)
    assert by_int.trace.settings["seeds"] == [[5, 0], [5, 1]]
    numbers = jax.random.key_data(jax.random.key(5)).tolist()
    assert by_key.trace.settings["seeds"] == [[numbers, 0], [numbers, 1]]
    each = lj.generate(model, prompts, CONFIG, seed=[5, 6])
    keys = jnp.stack([jax.random.key(5), jax.random.key(6)])
    np.testing.assert_array_equal(
        each.tokens, lj.generate(model, prompts, CONFIG, seed=keys).tokens
    )
    stream = list(lj.generate_stream(model, prompts, CONFIG, seed=keys))
    np.testing.assert_array_equal(stream[1].generated[0], each.generated[1])


def test_other_numbers_of_keys_are_refused(model, prompts):
    keys = jax.random.split(jax.random.key(0), 3)
    with pytest.raises(ValueError, match=r"seed is keys of shape \(3,\); allowed: one key, or 2"):
        lj.generate(model, prompts, CONFIG, seed=keys)


def test_a_sweep_over_a_threshold_is_one_program(model, prompts):
    traced = []

    @jax.jit
    def first(decoding, state):
        traced.append(1)
        state, record = lj.step(decoding, state)
        return state.nfe, record.counts.live_rows

    for threshold in (0.5, 0.9):
        nfe, rows = first(*lj.start(model, prompts, CONFIG.replace(threshold=threshold)))
        assert nfe.tolist() == [1, 1] and (rows > 0).all()
    assert len(traced) == 1


def test_float64_is_refused(model, prompts):
    with pytest.raises(ValueError, match="'float64'; allowed: 'float32' in a single step"):
        lj.start(model, prompts, lj.SamplerConfig.preset("fast_dllm"))


def test_prompts_of_different_lengths_share_a_program(model, prompts):
    """The length that is prepared for sets all shapes, and changes no token."""
    starts = [
        lj.start(model, [prompt], CONFIG, prompt_length=100) for prompt in (prompts[0], [5] * 100)
    ]
    shapes = [jax.eval_shape(lambda pair: pair, pair) for pair in starts]
    assert shapes[0] == shapes[1]
    padded = lj.generate(model, prompts, CONFIG, prompt_length=100)
    expected = lj.generate(model, prompts, CONFIG)
    np.testing.assert_array_equal(padded.tokens, expected.tokens)


@pytest.mark.parametrize("length", [-1, 1000])
def test_a_length_without_room_is_refused(model, prompts, length):
    with pytest.raises(ValueError, match=f"prompt_length .*{length}"):
        lj.start(model, prompts, CONFIG, prompt_length=length)
