"""Draft and verify: the tokens of plain decoding, in fewer forwards, whatever is drafted."""

import functools

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import llada_jax as lj
from llada_jax import testing
from llada_jax.sampler.record import Event
from llada_jax.testing import VOCAB, toy_logits

MODEL = testing.TOY.replace(causal="finished", mask_id=None)
GEN, BLOCK = 30, 8  # no multiple of the block
LENGTHS = (5, 1, 9)
PLAIN = lj.SamplerConfig.preset("autoregressive", gen_length=GEN)


@lj.drafter
class Scripted:
    """Proposes the answers that `params` have after the salt, some of them wrong or left out."""

    right: float = 1.0
    proposed: float = 1.0

    def draft(self, params, view, count):
        at = view.anchor[:, None] + 1 + jnp.arange(count)[None, :]
        token = jnp.take_along_axis(params[1], jnp.minimum(at, params[1].shape[1] - 1), axis=1)
        chance = (jnp.sin(jnp.float32(at) * 12.9898) * 43758.5453) % 1
        token = jnp.where(chance < self.right, token, (token + 1) % VOCAB)
        return jnp.where((chance * 7) % 1 < self.proposed, token, -1)


FUNCTIONS = {
    "forward_rows": lambda params, *rest: testing.forward_rows(params[0], *rest),
    "logits": lambda params, hidden: toy_logits(params[0], hidden),
    "empty_cache": testing.empty_cache,
}


def toy(salt, answers=None):
    answers = np.zeros((3, 0)) if answers is None else answers
    padded = np.zeros((len(answers), 96), np.int32)
    padded[:, : answers.shape[1]] = answers
    params = (jnp.int32(salt), jnp.asarray(padded))
    return lj.Model.custom(MODEL, params, **FUNCTIONS)


def drafted(drafter=None, **changes):
    scripted = {"drafter": Scripted() if drafter is None else drafter}
    return lj.SamplerConfig.preset("lookup", gen_length=GEN, block_length=BLOCK) \
        .replace(**scripted, **changes)  # fmt: skip


def plain(salt, prompts, **changes):
    """Returns the result of decoding token by token, and the toy with its answers."""
    result = lj.generate(toy(salt), prompts, PLAIN.replace(**changes))
    answers = np.zeros((len(prompts), 96), np.int32)
    for row, (prompt, tokens) in enumerate(zip(prompts, result.generated, strict=True)):
        answers[row, : len(prompt) + GEN] = [*prompt, *tokens]
    return result, toy(salt, answers)


@functools.cache
def long_case():
    """Returns a toy with long answers, its prompts and plain result."""
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9]]
    return prompts, *plain(4, prompts, eos_early_stop=False)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 10**4), st.floats(0, 1), st.floats(0.5, 1), st.sampled_from([0.0, 0.7]))
def test_drafted_output_equals_plain_decoding(salt, right, proposed, temperature):
    rng = np.random.default_rng(salt)
    prompts = [rng.integers(0, VOCAB - 3, length).tolist() for length in LENGTHS]
    expected, model = plain(salt, prompts, temperature=temperature)
    config = drafted(Scripted(right=right, proposed=proposed), temperature=temperature)
    result = lj.generate(model, prompts, config, trace=True)
    np.testing.assert_array_equal(result.tokens, expected.tokens)
    assert (result.nfe <= expected.nfe).all()
    trace = result.trace
    assert (trace.count(Event.AHEAD) <= trace.draft_rows).all()
    np.testing.assert_array_equal(trace.count(Event.AHEAD).sum(0) + trace.nfe, expected.nfe)
    assert (trace.count(Event.COMMIT).sum(0) + trace.count(Event.FILL).sum(0) == GEN).all()
    assert trace.count(Event.REMASK).sum() == 0


def test_a_perfect_drafter_fills_every_forward_and_a_useless_one_costs_none():
    prompts, expected, model = long_case()
    for loop in ("compiled", "host"):
        config = drafted(eos_early_stop=False)
        result = lj.generate(model, prompts, config, loop=loop, trace=True)
        np.testing.assert_array_equal(result.tokens, expected.tokens)
        assert result.nfe.tolist() == [1 + -(-(GEN - 1) // BLOCK)] * 3  # the first is the prompt's
        assert result.trace.count(Event.AHEAD)[1].tolist() == [BLOCK - 1] * 3
        assert result.tpf == GEN / 5
        config = config.replace(drafter=Scripted(right=0.0))
        result = lj.generate(model, prompts, config, loop=loop)
        np.testing.assert_array_equal(result.tokens, expected.tokens)
        assert result.nfe.tolist() == [GEN] * 3
