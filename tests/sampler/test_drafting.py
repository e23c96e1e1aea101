"""Draft and verify: the tokens of plain decoding, in fewer forwards, whatever is drafted."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llada_jax as lj
from llada_jax import testing
from llada_jax.rows import make_rows
from llada_jax.sampler.drafters import Lookup
from llada_jax.sampler.drafters.drafter import DraftView
from llada_jax.sampler.generate import decode
from llada_jax.sampler.prompts import with_ids
from llada_jax.sampler.record import Event
from llada_jax.sampler.stops import before_stop
from llada_jax.testing import EOS, EOT, VOCAB, toy_logits

MODEL = testing.TOY.replace(causal="finished", mask_id=None)
GEN, BLOCK, CANVAS = 30, 8, 64  # the generation is no multiple of the block
PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7, 9]]
PLAIN = lj.SamplerConfig.preset("autoregressive", gen_length=GEN)


@lj.drafter
class Scripted:
    """Proposes the answers that follow the salt in `params`, some of them wrong or left out."""

    right: float = 1.0
    proposed: float = 1.0

    def draft(self, params, view, count):
        at = view.anchor[:, None] + 1 + jnp.arange(count)[None, :]
        token = jnp.take_along_axis(params[1], jnp.minimum(at, CANVAS - 1), axis=1)
        chance = (jnp.sin(jnp.float32(at) * 12.9898) * 43758.5453) % 1
        token = jnp.where(chance < self.right, token, (token + 1) % VOCAB)
        return jnp.where((chance * 7) % 1 < self.proposed, token, -1)


FUNCTIONS = {
    "forward_rows": lambda params, *rest: testing.forward_rows(params[0], *rest),
    "logits": lambda params, hidden: toy_logits(params[0], hidden),
    "empty_cache": testing.empty_cache,
}
DRAFTED = lj.SamplerConfig.preset("lookup", gen_length=GEN, block_length=BLOCK).replace(
    drafter=Scripted()
)


def toy(salt, canvases=None, batch=3) -> lj.Model:
    """Returns the toy with canvases to draft from."""
    canvases = np.zeros((batch, CANVAS), np.int32) if canvases is None else canvases
    return lj.Model.custom(MODEL, (jnp.int32(salt), jnp.asarray(canvases)), **FUNCTIONS)


@jax.jit
def next_logits(salt, tokens):
    """Returns the logits of the token after each position of canvases."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    nothing = jnp.zeros((len(tokens), 0), bool)
    live = jnp.ones(tokens.shape, bool)
    rows = make_rows(tokens, positions, live, nothing, positions, positions[:, :0])
    out = testing.forward_rows(salt, rows, testing.empty_cache(salt, len(tokens), 0))
    return toy_logits(salt, out.hidden)


def greedy(salt, prompts=PROMPTS):
    """Returns canvases with the tokens that the toy generates one by one, without an end."""
    canvases = np.zeros((len(prompts), CANVAS), np.int32)
    for row, prompt in enumerate(prompts):
        canvases[row, : len(prompt)] = prompt
    for step in range(GEN):
        best = np.asarray(next_logits(salt, canvases)).argmax(axis=-1)
        for row, prompt in enumerate(prompts):
            canvases[row, len(prompt) + step] = best[row, len(prompt) + step - 1]
    return canvases


def generations(canvases, prompts=PROMPTS):
    return [canvases[row, len(prompt) :][:GEN] for row, prompt in enumerate(prompts)]


@functools.cache
def case():
    canvases = greedy(4)
    return toy(4, canvases), generations(canvases)


@pytest.mark.parametrize("loop", ["compiled", pytest.param("host", marks=pytest.mark.slow)])
def test_a_perfect_drafter_fills_every_forward_and_a_useless_one_costs_none(loop):
    model, expected = case()
    config = DRAFTED.replace(eos_early_stop=False)
    options = {"loop": loop, "trace": True, "top_logprobs": 2}
    result = lj.generate(model, PROMPTS, config, **options)
    np.testing.assert_array_equal(result.generated, expected)
    canvases = model.params[1]
    exact, ids = jax.lax.top_k(jax.nn.log_softmax(next_logits(4, canvases)), 2)
    for row, prompt in enumerate(PROMPTS):
        top = result.top_logprobs[row]
        predicts = slice(len(prompt) - 1, len(prompt) - 1 + GEN)
        np.testing.assert_array_equal(top.ids, ids[row, predicts])
        np.testing.assert_allclose(top.logprobs, exact[row, predicts], atol=1e-5)
    assert result.nfe.tolist() == [1 + -(-(GEN - 1) // BLOCK)] * 3  # the first is the prompt's
    assert result.tpf == GEN / 5 and result.trace.rows.tolist() == [40, 8, 8, 8, 8]
    accepted = result.trace.count(Event.AHEAD)
    assert accepted[:, 0].tolist() == [0, 7, 7, 7, 5]
    np.testing.assert_array_equal(accepted, result.trace.draft_rows)
    for right, proposed in ((0.0, 1.0), (1.0, 0.0), (0.8, 0.8)):
        scripted = Scripted(right=right, proposed=proposed)
        result = lj.generate(model, PROMPTS, config.replace(drafter=scripted), **options)
        np.testing.assert_array_equal(result.generated, expected)
        assert ((result.nfe == GEN) == (right * proposed == 0)).all()


@pytest.mark.slow
def test_the_host_loop_passes_only_the_parameters_that_a_drafter_reads():
    model, expected = case()
    seen = []

    @lj.drafter
    class Watched(Scripted):
        def params_read(self, params):
            return None, params[1]

        def draft(self, params, view, count):
            seen.append(params[0])
            return super().draft(params, view, count)

    config = with_ids(DRAFTED.replace(eos_early_stop=False, drafter=Watched()), MODEL)
    denoiser = replace(lj.start(model, PROMPTS, config)[0].denoiser, traceable=False)
    seen.clear()
    found = decode(denoiser, model.params, MODEL, PROMPTS, config, loop="host").generated
    np.testing.assert_array_equal(found, expected)
    assert seen and seen == [None] * len(seen)
    assert Lookup().params_read(model.params) is None


def test_a_model_whose_forwards_round_differently_warns(monkeypatch):
    monkeypatch.setattr(lj.Model, "stored_as", "int8")
    model, _ = case()
    with pytest.warns(UserWarning, match="drafts are verified in int8, where a forward of several"):
        lj.start(model, PROMPTS, DRAFTED)
    lj.start(model, PROMPTS, lj.SamplerConfig.preset("autoregressive", gen_length=GEN))


def test_an_end_inside_accepted_drafts_stops_the_sequence():
    """The toy's answers to these prompts have an EOS among drafts that are right."""
    prompts = [[7, 7], [1, 2, 3], [20]]
    canvases = greedy(11, prompts)
    expected = generations(canvases, prompts)
    ends = [int(np.argmax(np.append(tokens, EOS) == EOS)) for tokens in expected]
    assert min(ends) < GEN and any(end % BLOCK for end in ends)
    for tokens, end in zip(expected, ends, strict=True):
        tokens[end:] = EOS
    result = lj.generate(toy(11, canvases), prompts, DRAFTED)
    np.testing.assert_array_equal(result.generated, expected)
    assert result.nfe.tolist() == [1 + -(-min(end, GEN - 1) // BLOCK) for end in ends]


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 10**4), st.floats(0, 1), st.floats(0.5, 1), st.sampled_from([0.0, 0.7]))
def test_drafted_output_equals_plain_decoding(salt, right, proposed, temperature):
    rng = np.random.default_rng(salt)
    prompts = [rng.integers(0, EOT, length).tolist() for length in map(len, PROMPTS)]
    plain = lj.generate(toy(salt), prompts, PLAIN.replace(temperature=temperature))
    canvases = np.zeros((3, CANVAS), np.int32)
    for row, (prompt, tokens) in enumerate(zip(prompts, plain.generated, strict=True)):
        canvases[row, : len(prompt) + GEN] = [*prompt, *tokens]
    drafter = Scripted(right=right, proposed=proposed)
    config = DRAFTED.replace(drafter=drafter, temperature=temperature)
    result = lj.generate(toy(salt, canvases), prompts, config, trace=True)
    np.testing.assert_array_equal(result.tokens, plain.tokens)
    trace, accepted = result.trace, result.trace.count(Event.AHEAD)
    assert (accepted <= trace.draft_rows).all()
    committed = trace.count(Event.COMMIT).sum(axis=0)
    np.testing.assert_array_equal(committed, plain.nfe)  # one token per forward
    assert (committed + trace.count(Event.FILL).sum(axis=0) == GEN).all()
    assert trace.count(Event.REMASK).sum() == 0


@pytest.mark.slow
def test_sampled_tokens_have_the_models_distribution():
    """Pearson's chi-square of the second and third token, against exact probabilities."""
    prompt, n_samples, salt = [3, 1, 4], 4000, 5
    share = jax.jit(lambda tokens: jax.nn.softmax(_last_logits(salt, tokens)))
    first = np.asarray(share(jnp.array([prompt])))[0]
    pairs = jnp.array([[*prompt, token] for token in range(VOCAB)])
    expected = first @ np.asarray(share(pairs))
    canvases = np.tile(greedy(salt, [prompt]), (n_samples, 1))
    config = DRAFTED.replace(temperature=1.0, gen_length=4, eos_early_stop=False)
    prompts, seeds = [prompt] * n_samples, list(range(n_samples))
    result = lj.generate(toy(salt, canvases), prompts, config, seed=seeds)
    assert (result.nfe < 4).any(), "no draft was accepted"
    counts = np.bincount(np.stack(result.generated)[:, 1], minlength=VOCAB)
    chi_square = ((counts - n_samples * expected) ** 2 / (n_samples * expected)).sum()
    assert chi_square < 55  # 23 degrees of freedom: exceeded once in 5,000 times


def _last_logits(salt, tokens):
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    live, nothing = jnp.ones(tokens.shape, bool), jnp.zeros((len(tokens), 0), bool)
    rows = make_rows(tokens, positions, live, nothing, positions, positions[:, :0])
    out = testing.forward_rows(salt, rows, testing.empty_cache(salt, len(tokens), 0))
    return toy_logits(salt, out.hidden[:, -1])


@pytest.mark.slow
def test_streams_and_single_steps_decode_alike():
    model, expected = case()
    config = DRAFTED.replace(eos_early_stop=False, drafter=Lookup(min_ngram=1))
    whole = lj.generate(model, PROMPTS, config)
    np.testing.assert_array_equal(whole.generated, expected)
    stream = lj.generate_stream(model, PROMPTS, config, places=2)
    for row, result in enumerate(stream):
        np.testing.assert_array_equal(result.generated[0], expected[row])
        assert result.nfe == whole.nfe[row]


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["compiled", "host"])
def test_a_stop_string_inside_accepted_drafts_ends_the_text(loop):
    model, expected = case()

    def to_text(ids):
        return "".join(chr(0x100 + int(i)) for i in ids)

    texts = [to_text(tokens) for tokens in expected]
    stop = texts[0][11:13]  # inside the second run
    config = with_ids(DRAFTED.replace(stop=(stop,), eos_early_stop=False), MODEL)
    plain = lj.start(model, PROMPTS, config.replace(stop=()))[0]
    result = decode(
        plain.denoiser, model.params, MODEL, PROMPTS, config, loop=loop, to_text=to_text
    )
    assert [before_stop(to_text(tokens), (stop,)) for tokens in result.generated] == [
        before_stop(text, (stop,)) for text in texts
    ]
    assert result.nfe[0] == 3


@pytest.mark.parametrize(
    ("text", "ngrams", "expected"),
    [
        ([1, 2, 3, 4, 9, 1, 2, 3], {}, [4, 9, 1, 2, 3]),  # what followed, then from there again
        ([1, 2, 3, 4, 5, 2, 3, 6, 1, 2, 3], {}, [4, 5, 2, 3, 6]),  # the longest match
        ([1, 2, 7, 1, 2, 8, 1, 2], {}, [8, 1, 2, 8, 1]),  # the last one of equal length
        ([1, 2, 1, 2, 1, 2], {}, [1, 2, 1, 2, 1]),  # a repetition goes on
        ([1, 2, 3, 9, 3], {}, [-1] * 5),  # one token is too short
        ([1, 2, 3, 9, 3], {"min_ngram": 1}, [9, 3, 9, 3, 9]),
        ([5], {"min_ngram": 1}, [-1] * 5),
        ([5, 5], {"min_ngram": 1}, [5] * 5),
        ([6, 1, 2, 4, 7, 1, 2, 5, 6, 1, 2], {"max_ngram": 2}, [5, 6, 1, 2, 5]),
    ],
)
def test_look_up_drafts_what_followed_the_longest_match(text, ngrams, expected):
    rest = [1, 2, 3, 1, 2]  # after the anchor: means nothing
    canvas = jnp.array([text + rest], jnp.int32)
    view = DraftView(canvas, jnp.array([len(text) - 1], jnp.int32))
    assert Lookup(**ngrams).draft(None, view, 5)[0].tolist() == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drafter": "guess"}, "drafter is 'guess'; allowed: 'lookup', 'own'"),
        ({"drafter": "lookup", "min_ngram": 5}, r"min_ngram is 5; allowed: up to max_ngram \(4\)"),
        ({"drafter": "tests.sampler.toy:TOY"}, "drafter is .*; allowed: a class under lj.drafter"),
        ({"cfg_scale": 1.0}, "cfg_scale is 1.0 with a drafter; allowed: 0"),
        ({"accept": "quota"}, "drafter is 'lookup' and accept is 'quota'; allowed: 'speculate'"),
        ({"drafter": None, "max_ngram": 3}, "max_ngram is 3, which nothing reads; .*'lookup'"),
    ],
)
def test_settings_of_drafters_are_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        lj.SamplerConfig.preset("lookup", **changes)
    with pytest.raises(TypeError, match="drafter Empty has no draft; allowed: draft"):
        lj.drafter(type("Empty", (), {}))


def test_models_without_verification_are_refused():
    config = lj.SamplerConfig.preset("lookup", gen_length=8)
    with pytest.raises(ValueError, match="'speculate' and the model's finished tokens do not"):
        testing.toy_decode([[1, 2]], config)
    with pytest.raises(ValueError, match=r"no \[MASK\], .*; allowed: 1 .*, or a drafter"):
        lj.generate(toy(1), [[1, 2]], config.replace(drafter=None))


def test_a_drafter_is_a_flat_setting():
    path = f"{__name__}:Scripted"
    config = lj.SamplerConfig.preset("lookup", drafter=path, right=0.5)
    assert config.drafter == Scripted(right=0.5)
    assert lj.SamplerConfig.setting_types(drafter=path)["right"] is float
    assert lj.SamplerConfig.from_flat(config.as_dict()) == config
    assert config.replace(right=0.25).drafter == Scripted(right=0.25)
    assert lj.SamplerConfig.preset("lookup").replace(max_ngram=5).drafter == Lookup(max_ngram=5)
