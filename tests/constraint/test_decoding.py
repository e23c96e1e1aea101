"""All ways of decoding give a text that the constraint allows."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.constraint.batch import CompiledConstraints, grammar_of
from llada_jax.constraint.patterns import Constraint
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.continuous import Slots
from llada_jax.sampler.generate import checked_run, decode
from llada_jax.sampler.prompts import with_ids
from llada_jax.testing import CONFIDENCES, EOS, EOT, MASK, PROMPTS, VOCAB
from tests.constraint.tiny import accepts, by_letters
from tests.sampler.toy import BLOCK_CAUSAL, CONFIG, Worker, toy_decode, toy_denoiser

ENDS = (EOS, EOT)
LOW, HIGH = CONFIDENCES
# A word of letters that rise by turns, in brackets, once or more; then what closes it all.
BRACKETS = by_letters(
    {(0, "A"): 1, (1, "BCDEFGH"): 2, (2, "IJKLMNO"): 1, (2, "P"): 3, (1, "P"): 3, (3, "A"): 1,
     (3, "Q"): 4, (4, "R"): 4, (4, "S"): 5},
    {5}, VOCAB, ENDS,
)  # fmt: skip
FEW = by_letters({(0, "ABC"): 1, (1, "DEF"): 2, (2, "DEF"): 3, (3, "G"): 4}, {2, 4}, VOCAB, ENDS)
LENGTHS = {"gen_length": 24, "block_length": 8}
BY_BLOCK = {"cache": "blockwise"}
SETTINGS = {
    "quota": {},
    "three a step": {"steps": 9},
    "threshold": {"threshold": LOW, "eos_early_stop": True},
    "dual": {"threshold": LOW, "cache": "dual"},
    "entropy": {"accept": "entropy_distance", "max_entropy": 2.0, "cache": "prefix"},
    "drafts": {"threshold": LOW, "window": "multi_block", **BY_BLOCK},
    "staged": {"accept": "staged", "theta_visible": LOW, "theta_stable": HIGH, **BY_BLOCK},
    "remasking": {
        "accept": "staged", "theta_visible": LOW, "theta_stable": HIGH, "on_change": "remask",
        **BY_BLOCK,
    },
    "llada.cpp": {
        "accept": "staged", "theta_visible": LOW, "theta_stable": HIGH, "window": "multi_block",
        "eos_early_stop": True, **BY_BLOCK,
    },
    "wino": {"accept": "wino", "wino_accept": LOW, "wino_verify": 0.51},
    "token edit": {
        "accept": "token_edit", "edit_unmask": LOW, "edit_replace": LOW, "edit_steps": 4,
        **BY_BLOCK,
    },
    "sampled": {"threshold": LOW, "temperature": 1.0},
    "guided": {"threshold": LOW, "cfg_scale": 1.0},
}  # fmt: skip


def texts(*automata, confidence="allowed", begins=0) -> CompiledConstraints:
    constraints = [Constraint(f"{i}", confidence, begins=begins) for i, _ in enumerate(automata)]
    patterns = [each.texts for each in constraints]
    return CompiledConstraints(tuple(constraints), dict(zip(patterns, automata, strict=True)))


@lj.rule
class Contrary:
    """Puts tokens at wrong positions, also in place of others."""

    threshold: float = LOW
    revises = True

    def decide(self, seen, state):
        other = (seen.predicted + seen.position) % VOCAB
        swap = seen.position % 3 == 0
        return lj.Decision(
            commit=seen.confidence >= self.threshold,
            token=jnp.where(swap, other, seen.predicted),
            replace=seen.committed & (seen.position % 5 == 0),
            remask=seen.committed & (seen.position % 7 == 0),
        ), state


def checked(settings: dict, confidence: str, **options):
    """Decodes a batch of two patterns in both loops, checks its texts, and returns them."""
    config = SamplerConfig.from_flat(**{**LENGTHS, **settings})
    constraint = texts(BRACKETS, FEW, BRACKETS, confidence=confidence)
    runs = [
        toy_decode(PROMPTS, config, loop=loop, texts=constraint, **options)
        for loop in ("compiled", "host")
    ]
    for row, automaton in enumerate(constraint.automata.values()):
        generated = runs[0].generated[row]
        assert accepts(automaton, generated), generated
        np.testing.assert_array_equal(generated, runs[1].generated[row])
    return runs[0]


QUICK = ("threshold",)


@pytest.mark.parametrize("confidence", ["allowed", pytest.param("raw", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in SETTINGS],
)
def test_every_rule_and_window_gives_texts_of_the_constraint(name, confidence):
    result = checked(SETTINGS[name], confidence)
    assert not (result.tokens == MASK).any()


def test_a_larger_pattern_compiles_no_further_forward_or_head():
    """Only the search for texts is compiled for the size of a constraint's tables."""
    lines = range(20)  # of 15 states, one for each first letter
    after = {(0, chr(ord("A") + line)): 2 + 15 * line for line in lines}
    after |= {(2 + 15 * line + k, "A"): 3 + 15 * line + k for line in lines for k in range(14)}
    after |= {(16 + 15 * line, "A"): 1 for line in lines}
    many = by_letters(after, {1}, VOCAB, ENDS)
    config = with_ids(SamplerConfig.from_flat(**LENGTHS, threshold=LOW, **BY_BLOCK), CONFIG)
    toy, traced = toy_denoiser(config), []
    score = toy.measure_rows
    assert score is not None

    def forward_rows(salt, rows, cache):
        traced.append(("forward", rows.tokens.shape[1]))
        return toy.forward_rows(salt, rows, cache)

    def measure_rows(salt, hidden, *arguments):
        traced.append(("head", hidden.shape[1]))
        return score(salt, hidden, *arguments)

    denoiser = replace(toy, forward_rows=forward_rows, measure_rows=measure_rows)
    sizes, buckets = set(), []
    for automaton in (FEW, many):
        constraint = texts(automaton)
        sizes.add(grammar_of(constraint, ENDS).transitions.shape)
        options = {"texts": constraint, "loop": "host", "trace": True}
        result = decode(denoiser, 0, CONFIG, PROMPTS[:1], config, **options)
        assert accepts(automaton, result.generated[0])
        buckets.append({*result.trace.rows.tolist()})
    assert len(sizes) == 2 and buckets[0] & buckets[1]
    assert {part for part, _ in traced} == {"forward", "head"}
    assert sorted(traced) == sorted(set(traced))


@pytest.mark.slow
@pytest.mark.parametrize("confidence", ["allowed", "raw"])
def test_a_custom_rule_cannot_violate_the_constraint(confidence):
    checked({"rule": Contrary(), **BY_BLOCK}, confidence)


@lj.rule
class CommitsOldDrafts:
    """Commits drafts of later blocks some forwards after they were predicted, as Prophet may."""

    needs = frozenset({"drafts"})

    def decide(self, seen, state):
        commit = seen.with_progress(jnp.zeros_like(seen.masked))
        late = (seen.step == 1)[:, None]
        return lj.Decision(commit=commit, ahead=late & seen.drafts.masked), state


def test_drafts_that_a_rule_commits_later_agree_with_one_text():
    """A window that has shrunk again scores them no more, while other tokens are committed."""
    config = SamplerConfig.preset(
        "multi_block", gen_length=24, block_length=4, threshold=None, rule=CommitsOldDrafts()
    )
    result = toy_decode(PROMPTS[:2], config, texts=texts(BRACKETS))
    assert all(accepts(BRACKETS, generated) for generated in result.generated)


@pytest.mark.slow
def test_a_row_does_not_depend_on_its_batch():
    config = SamplerConfig.from_flat(**LENGTHS, **SETTINGS["staged"])
    together = toy_decode(PROMPTS, config, texts=texts(BRACKETS, FEW, BRACKETS))
    alone = toy_decode(PROMPTS[1:2], config, texts=texts(FEW))
    np.testing.assert_array_equal(together.generated[1], alone.generated[0])


@pytest.mark.slow
def test_a_worker_refreshes_under_a_constraint():
    config = SamplerConfig.from_flat(**LENGTHS, **SETTINGS["staged"], refresh="worker")
    rows = config.replace(refresh="rows")
    constraint = texts(BRACKETS)
    with Worker() as worker:
        found = toy_decode(PROMPTS, config, loop="host", worker=worker, texts=constraint)
    assert all(accepts(BRACKETS, each) for each in found.generated)
    again = toy_decode(PROMPTS, rows, loop="host", texts=constraint)
    np.testing.assert_array_equal(found.tokens, again.tokens)


def test_infilling_keeps_the_fixed_tokens():
    a, h, p, q, s = (ord(letter) - 65 for letter in "AHPQS")
    hole = [MASK] * 3
    canvas = [7, 7, a, *hole, p, *hole, h, *hole, q, MASK, s, MASK]
    config = SamplerConfig.from_flat(**LENGTHS, threshold=LOW)
    result = toy_decode([canvas], config, infill=True, texts=texts(BRACKETS, begins=2))
    filled = result.generated[0]
    assert accepts(BRACKETS, filled[2:]) and filled[6] == p and filled[10] == h
    with pytest.raises(ValueError, match="no text of the constraint agrees"):
        toy_decode([[*canvas[:3], s, *canvas[4:]]], config, infill=True, texts=texts(BRACKETS))


WORDS = by_letters(
    {(i, letter): i + 1 for i, letter in enumerate("ABCDEFGH")} | {(3, "XY"): 4}, {8}, VOCAB, ENDS
)  # one letter of eight is free


@pytest.mark.parametrize("loop", ["compiled", pytest.param("host", marks=pytest.mark.slow)])
def test_tokens_without_alternative_need_no_forward_pass(loop):
    config, options = (
        SamplerConfig.from_flat(gen_length=12, block_length=4, threshold=0.99),
        {"loop": loop},
    )
    result = toy_decode(PROMPTS[:1], config, texts=texts(WORDS), trace=True, **options)
    assert result.nfe[0] == 1 and accepts(WORDS, result.generated[0])
    assert len(result.trace.event_step) == 12 and not result.trace.event_step.any()
    (told,) = result.trace.settings["constraints"]
    assert told["pattern"] == "0" and told["confidence"] == "allowed"
    whole = by_letters({(0, "A"): 1, (1, "B"): 2}, {2}, VOCAB, ENDS)
    none = toy_decode(PROMPTS[:1], config, texts=texts(whole), **options)
    assert none.nfe[0] == 0 and accepts(whole, none.generated[0])


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["host", "compiled"])
def test_blocks_without_masks_share_a_pass_with_the_next_one(loop):
    edges = {(i, "C"): i + 1 for i in range(1, 52)} | {(0, "AB"): 1, (52, "DE"): 53}
    long = by_letters(edges, {53}, VOCAB, ENDS)
    config = SamplerConfig.from_flat(
        gen_length=64, block_length=4, threshold=LOW, cache="blockwise"
    )
    result = toy_decode(PROMPTS[:1], config, loop=loop, texts=texts(long))
    assert accepts(long, result.generated[0]) and result.nfe[0] == 2


@pytest.mark.slow
def test_raw_confidence_needs_forward_passes():
    config = SamplerConfig.from_flat(gen_length=12, block_length=4, threshold=0.99)
    assert toy_decode(PROMPTS[:1], config, texts=texts(WORDS, confidence="raw")).nfe[0] > 3


@pytest.mark.slow
def test_a_stream_gives_the_same_results_as_single_prompts():
    config = SamplerConfig.from_flat(**LENGTHS, threshold=LOW, eos_early_stop=True)
    automata = (BRACKETS, FEW, WORDS)
    prompts = [[1 + row, 2, 3] for row in range(len(automata))]
    named, denoiser = with_ids(config, CONFIG), toy_denoiser(with_ids(config, CONFIG))
    run = checked_run(denoiser, jnp.int32(0), CONFIG, prompts, named, texts=texts(*automata))
    for row, found in enumerate(Slots(run, 2).results(trace=True)):
        alone = toy_decode(prompts[row : row + 1], config, texts=texts(automata[row]))
        assert accepts(automata[row], found.generated[0])
        np.testing.assert_array_equal(found.generated[0], alone.generated[0])
        assert found.nfe[0] == alone.nfe[0]
        assert found.trace.settings["constraints"][0]["pattern"] == f"{row}"


@pytest.mark.slow
def test_a_model_of_whole_blocks_stays_within_gen_length():
    config = SamplerConfig.from_flat(
        gen_length=16, block_length=8, threshold=LOW, cache="blockwise"
    )
    result = toy_decode(PROMPTS, config, BLOCK_CAUSAL, texts=texts(BRACKETS))
    assert all(accepts(BRACKETS, each) for each in result.generated)


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"gen_length": 2, "block_length": 2}, {}, "shortest text has 4 tokens"),
        ({"logits_eos_inf": True}, {}, "logits_eos_inf is True with a constraint"),
        ({"confidence_eos_eot_inf": True}, {}, "confidence_eos_eot_inf is True"),
    ],
)
def test_impossible_constraints_are_refused(settings, options, message):
    with pytest.raises(ValueError, match=message):
        config = SamplerConfig.from_flat(**{**LENGTHS, **settings})
        toy_decode(PROMPTS, config, CONFIG, texts=texts(BRACKETS), **options)
