"""Real logits, our own sampler, and what number formats flip."""

from typing import get_args

import jax.numpy as jnp
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.model.head import ScoreRules, absorb_chunk, finish_scores, start_scores
from llada_jax.sampler.candidates import Candidates
from llada_jax.sampler.rules.rule import accepted
from llada_jax.sampling_engine.agreement import count_flips, flips_of, random_inputs
from llada_jax.sampling_engine.formats import LogitFormat
from llada_jax.sampling_engine.host import store_logits
from llada_jax.sampling_engine.memories import EngineConfig
from llada_jax.sampling_engine.programs import compile_sampler
from llada_jax.sampling_engine.reference import Decisions, StepInputs, reference_sampler
from llada_jax.sampling_engine.sampling import Sampling
from tests.sampling_engine.cases import MODES, assert_same, exact_engine, run

ROWS, STEPS = 16, 4
QUESTIONS = ("Tom has 3 apples and buys 4 more. How many?", "Anna had 9 pens and lost 2.")


def our_step(logits, tokens, is_open, quota, config):
    """One step of `llada_jax.sampler` on logits."""
    scores = start_scores(logits.shape[:2], jnp.dtype("float32"))
    scores = finish_scores(absorb_chunk(scores, logits, 0, None, ScoreRules()))
    candidates = Candidates(scores, is_open, jnp.zeros(is_open.shape), quota)
    transfer = accepted(config.rule, candidates)
    return np.asarray(jnp.where(transfer, scores.token, tokens)), np.asarray(transfer)


@pytest.fixture(scope="module", params=[None, 0.6], ids=["top_k", "threshold"])
def decoded(request) -> tuple[Sampling, StepInputs, Decisions]:
    """A block decoded by our sampler: the logits of all its steps, and what became of it."""
    threshold = request.param
    model = lj.load("tiny")
    mask_id, tokenizer = model.config.mask_id, model.tokenizer
    prompts = [tokenizer.encode_chat([{"role": "user", "content": q}]) for q in QUESTIONS]
    length = min(map(len, prompts))
    block = np.full((2, ROWS), mask_id, np.int32)
    canvas = np.concatenate([np.array([p[:length] for p in prompts], np.int32), block], axis=1)
    config = lj.SamplerConfig(gen_length=ROWS, block_length=ROWS, steps=STEPS, threshold=threshold)
    k = np.full((STEPS, 2), ROWS // STEPS if threshold is None else 1, np.int32)
    every, start = [], canvas[:, length:].copy()
    for step in range(STEPS):
        logits = np.array(lj.forward(model, canvas))[:, length:]
        logits[..., mask_id] = -np.inf
        every.append(logits)
        tokens, is_open = canvas[:, length:].copy(), canvas[:, length:] == mask_id
        after, transfer = our_step(*map(jnp.asarray, (logits, tokens, is_open, k[step])), config)
        canvas[:, length:] = after
        final = Decisions(after, after, transfer, is_open)
    inputs = StepInputs(np.stack(every), start, start == mask_id, k)
    sampling = Sampling(
        batch=2, rows=ROWS, vocab=model.config.vocab_size, steps=STEPS, threshold=threshold
    )
    return sampling, inputs, final


@pytest.mark.parametrize("mode", MODES)
def test_the_machine_decodes_what_our_sampler_does(decoded, mode):
    settings, inputs, ours = decoded
    sampling = Sampling(**{**vars(settings), "mode": mode})
    found = run(sampling, exact_engine(128), inputs)
    assert_same(found, reference_sampler(sampling, inputs))
    np.testing.assert_array_equal(found.tokens, ours.tokens)
    np.testing.assert_array_equal(found.transfer, ours.transfer)
    np.testing.assert_array_equal(found.open, ours.open)


def test_one_step_of_real_logits(decoded):
    settings, inputs, _ = decoded
    sampling = Sampling(**{**vars(settings), "steps": 1, "mode": "one_pass"})
    first = inputs._replace(logits=inputs.logits[:1], k=inputs.k[:1])
    assert_same(run(sampling, exact_engine(64), first), reference_sampler(sampling, first))


def test_flips_are_counted_where_positions_are_open():
    is_open = np.array([[True, True, True, False]])
    tokens = np.array([[1, 2, 3, 4]])
    wanted = Decisions(tokens, tokens, np.array([[True, False, True, False]]), is_open)
    other = wanted._replace(
        predictions=np.array([[1, 9, 3, 9]]), transfer=np.array([[False, True, True, True]])
    )
    assert count_flips(other, wanted) == (3, 1, 2, 2)
    assert count_flips(wanted, wanted).share == 0
    assert count_flips(wanted, wanted._replace(open=np.zeros_like(is_open))).share == 0


def test_coarser_logits_flip_more():
    """Rows whose best two ids are close: float32 keeps them apart, MX elements do not."""
    inputs = random_inputs(4, 1, 4, 16, 300, 4)
    runner_up = np.argsort(inputs.logits, axis=-1)[..., -2:-1]
    top = inputs.logits.max(axis=-1, keepdims=True)
    np.put_along_axis(inputs.logits, runner_up, top * np.float32(0.999), axis=-1)
    sampling = Sampling(batch=4, rows=16, vocab=300)
    stored = {f: store_logits(sampling, 32, inputs.logits, f) for f in get_args(LogitFormat)}
    program = compile_sampler(sampling, exact_engine())
    coarse = compile_sampler(sampling, EngineConfig(vlen=32))
    assert flips_of(program, inputs, stored["float32"]).either == 0
    few, many = (flips_of(coarse, inputs, stored[f]).tokens for f in ("bfloat16", "mx_e4m3"))
    assert 0 < few <= many
