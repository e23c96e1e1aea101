"""Families with causal attention, in an order that the canvas defines."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llada_jax as lj
from llada_jax.model.forward import forward
from llada_jax.sampler.replay import KEPT, event_states
from llada_jax.sampler.spec import StepSpec
from llada_jax.sampler.state import STABLE
from llada_jax.sampler.windows.window import CanvasLayout
from tests.checkpoint.folders import GOLDENS, TOLERANCE
from tests.sampler.in_order import in_order

GEN, EOS = 16, 95
PROMPTS = [[5, 6, 7, 8, 9], [10, 11], list(range(20, 29))]
PRESET = lj.SamplerConfig.preset
ONE = PRESET("autoregressive", gen_length=GEN)
DRAFTED = PRESET("self_speculation", gen_length=GEN, block_length=8)
logits_of = jax.jit(forward, static_argnums=1)


@functools.cache
def golden(name):
    return lj.load(GOLDENS / name)


def drawn(name: str, seed: int) -> lj.Model:
    """The golden's shape with other weights, for which EOS is as frequent as any other token."""
    model, rng = golden(name), np.random.default_rng(seed)

    def scaled(leaf):
        scale = rng.choice([0.5, 1, 2], (*leaf.shape[:1], *[1] * (leaf.ndim - 1)))
        return jnp.asarray(leaf * scale, leaf.dtype)

    params = jax.tree.map(scaled, model.params)
    likely = int(
        np.asarray(logits_of(params, model.config, np.array(PROMPTS[0])[None]))[0, -1].argmax()
    )
    swapped = params.head.at[jnp.array([EOS, likely])].set(params.head[jnp.array([likely, EOS])])
    return model.replace(params=params._replace(head=swapped) if seed % 3 == 0 else params)


@pytest.mark.parametrize(
    "name",
    ["ar-llama3"]
    + [pytest.param(f"ar-{each}", marks=pytest.mark.slow) for each in ("llama", "qwen2", "qwen3")],
)
def test_autoregressive_models_generate_as_transformers_do(name):
    model = golden(name)
    cases = json.loads((GOLDENS / name / "generate.json").read_text())
    prompts = [case["prompt"][0] for case in cases]
    found = lj.generate(model, prompts, PRESET("autoregressive", gen_length=24)).generated
    for case, prompt, tokens in zip(cases, prompts, found, strict=True):
        expected = case["tokens"][0][len(prompt) :]
        assert tokens[: len(expected)].tolist() == expected


def test_an_autoregressive_model_decodes_one_token_per_forward():
    for preset in ("nemotron", "self_speculation"):
        with pytest.raises(ValueError, match=r"the model has no \[MASK\], as .*; allowed: 1"):
            lj.generate(golden("ar-qwen3"), [[1, 2]], PRESET(preset, gen_length=32))
    layout = CanvasLayout(length=64, prompt_length=32, n_blocks=GEN)
    assert StepSpec(golden("ar-qwen3").config, ONE).buckets(layout) == (1, 33)


def test_a_block_sees_itself_and_finished_tokens():
    model, data = golden("nemotron"), np.load(GOLDENS / "nemotron" / "forward.npz")
    order = jnp.minimum(jnp.arange(data["tokens"].shape[1]), data["start"])[None]
    order = jnp.broadcast_to(order, data["tokens"].shape)
    found = in_order(model.params, model.config, data["tokens"], order)
    np.testing.assert_allclose(found, data["denoised"], rtol=0, atol=TOLERANCE)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_greedy_self_speculation_matches_token_by_token_decoding(seed):
    model, rng = drawn("nemotron", seed), np.random.default_rng(seed)
    prompts = [rng.integers(0, 90, len(prompt)).tolist() for prompt in PROMPTS]
    one = lj.generate(model, prompts, ONE)
    found = lj.generate(model, prompts, DRAFTED)
    np.testing.assert_array_equal(found.generated, one.generated)
    assert (found.nfe <= 2 * one.nfe).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("nemotron", "self_speculation"),
        ("nemotron", "nemotron"),
        ("wedlm", "wedlm"),
    ],
)
def test_a_batch_decodes_each_row_as_alone(family, name):
    config = PRESET(name, gen_length=GEN, block_length=8)
    together = lj.generate(golden(family), PROMPTS, config, trace=True)
    trace, left = together.trace, {}
    for row, position, state in zip(
        trace.event_row, trace.event_position, event_states(trace), strict=True
    ):
        left[row, position] = left[row, position] if state == KEPT else state
    assert len(left) == len(PROMPTS) * GEN and {*left.values()} == {STABLE}
    for row, prompt in enumerate(PROMPTS):
        alone = lj.generate(golden(family), [prompt], config, loop="host")
        np.testing.assert_array_equal(together.generated[row], alone.generated[0])
        assert together.nfe[row] == alone.nfe[0]


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("nemotron", {"cache": "none"}, "cache is 'none' and the model's attention is causal"),
        ("nemotron", {"cache": "dual"}, "cache is 'dual' and the model's attention is causal"),
        ("nemotron", {"window": "multi_block", "cache": "blockwise", "threshold": 0.9},
         "window is 'multi_block' and accept 'threshold'; allowed: 'by_cache'"),
        ("nemotron", {"cache": "blockwise", "accept": "token_edit"}, "accept 'token_edit'"),
        ("sdar-b4", {"cache": "blockwise", "block_length": 4, "accept": "speculate"},
         "finished tokens do not predict the next one"),
        ("wedlm", {"cache": "dual"}, "cache is 'dual' and the model's attention is causal"),
        ("wedlm", {"cache": "blockwise", "accept": "staged"}, "accept 'staged'"),
        ("sdar-b4", {"cache": "blockwise", "window": "sliding", "block_length": 4,
                     "threshold": 0.9}, "window is 'sliding', and the model's blocks begin"),
        ("nemotron", {"cache": "blockwise", "window": "sliding", "threshold": 0.9},
         "window is 'sliding', and the model's blocks begin"),
    ],
)  # fmt: skip
def test_settings_that_causal_families_cannot_use_are_refused(family, settings, message):
    config = lj.SamplerConfig.from_flat(**{"gen_length": 8, "block_length": 8, **settings})
    with pytest.raises(ValueError, match=message):
        lj.generate(golden(family), [[1, 2, 3]], config)


@pytest.mark.parametrize("accept", ["quota", "staged"])
def test_a_window_slides_by_the_tokens_of_each_step(accept):
    with pytest.raises(ValueError, match=f"window is 'sliding' and accept is '{accept}'"):
        lj.SamplerConfig.from_flat(window="sliding", cache="blockwise", accept=accept)


def test_holes_and_constraints_turn_speculation_off():
    with pytest.raises(ValueError, match="'speculate' with holes or a constraint"):
        lj.infill(golden("nemotron"), [[1, 94, 94, 2]], PRESET("self_speculation"))


def test_speculation_predicts_no_masks():
    with pytest.raises(ValueError, match="predict_mask is True"):
        PRESET("self_speculation", predict_mask=True)


@pytest.mark.slow
@pytest.mark.parametrize("drafted", [DRAFTED, PRESET("lookup", gen_length=GEN, min_ngram=1)])
def test_sampled_speculation_matches_token_by_token_decoding(drafted):
    model = golden("nemotron")
    one = lj.generate(model, PROMPTS, ONE.replace(temperature=0.7), seed=3)
    found = lj.generate(model, PROMPTS, drafted.replace(temperature=0.7), seed=3)
    np.testing.assert_array_equal(found.generated, one.generated)
