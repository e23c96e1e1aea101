"""Custom rules in user files: six published rules, and the guarantees that every rule gets."""

from dataclasses import replace
from functools import partial
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

import llada_jax as lj
from llada_jax.sampler.generate import decode as run
from llada_jax.sampler.prompts import with_ids
from llada_jax.sampler.rules.rule import Need
from llada_jax.sampler.trace import Event
from llada_jax.testing import (
    MASK,
    PROMPTS,
    TOY,
    VOCAB,
    check_rule,
    toy_decode,
    toy_denoiser,
    toy_logits,
)
from tests.sampler.user_rules.credit import CreditDecoding
from tests.sampler.user_rules.klass import KLASS
from tests.sampler.user_rules.local_leap import LocalLeap
from tests.sampler.user_rules.prophet import Prophet
from tests.sampler.user_rules.rcr import RCR
from tests.sampler.user_rules.remask import RemaskByShadow, RemaskByToken, RemaskOnward
from tests.sampler.user_rules.saber import Saber

LENGTHS = dict(gen_length=24, block_length=8, steps=12, cache="blockwise")
SHORT = dict(gen_length=8, block_length=8, steps=8, cache="none")
RULES = {
    "klass": KLASS(threshold=0.2, divergence=1.0, history=1),
    "credit": CreditDecoding(threshold=0.3),
    "prophet": Prophet(early=0.6, middle=0.4, late=0.2),
    "local_leap": LocalLeap(anchor=0.3, near=0.2, radius=2),
    "rcr": RCR(),
    "saber": Saber(),
}


def decode(salt=1, loop="compiled", **settings):
    return toy_decode(
        PROMPTS, lj.SamplerConfig.from_flat(**{**LENGTHS, **settings}), salt=salt, loop=loop
    )


def mostly_slow(names, quick):
    marks = {name: [] if name in quick else pytest.mark.slow for name in names}
    return [pytest.param(name, marks=mark) for name, mark in marks.items()]


@pytest.mark.parametrize("name", mostly_slow(RULES, quick=("local_leap",)))
def test_every_rule_meets_the_guarantees(name):
    check_rule(RULES[name], salts=(2,), steps=12)


THRESHOLD = {"threshold": 0.24}
NEUTRAL = {
    "klass": (
        KLASS(threshold=0.24, divergence=float("inf"), history=1),
        {**THRESHOLD, "strict_threshold": True},
    ),
    "credit": (CreditDecoding(threshold=0.24, alpha=0.0), THRESHOLD),
    "local_leap": (LocalLeap(anchor=0.24, near=0.1, radius=0), THRESHOLD),
    "prophet": (Prophet(early=99.0, middle=99.0, late=99.0), {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_settings_equal_a_built_in_rule(name):
    own, house = NEUTRAL[name]
    steps = {"klass": 24, "prophet": 24}.get(name, 12)  # these two fall back to the schedule
    for salt in (1, 2, 3):
        ours = decode(salt, rule=own, steps=steps)
        theirs = decode(salt, steps=steps, **house)
        np.testing.assert_array_equal(ours.trace.commit_steps(), theirs.trace.commit_steps())
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)


@pytest.mark.slow
def test_running_confidence_without_remasking_is_the_schedule():
    found = {True: 0, False: 0}
    for salt in range(8):
        running = decode(salt, rule=RCR())
        remasks = running.trace.count(Event.REMASK).sum(axis=0)
        plain = decode(salt)
        for row, remasked in enumerate(remasks):
            found[bool(remasked)] += 1
            if not remasked:
                np.testing.assert_array_equal(running.generated[row], plain.generated[row])
    assert found[True] > 0


def test_a_threshold_above_one_gives_one_token_per_forward():
    result = decode(rule=LocalLeap(anchor=2.0, near=2.0, radius=2))  # shares a program
    assert result.nfe.tolist() == [24] * 3
    assert (result.trace.count(Event.COMMIT) == 1).all()


@lj.rule
class Restless:
    """Masks everything again in every step."""

    most_remasks = 2
    revises = True
    rescore = "none"

    def decide(self, seen, state):
        return lj.Decision(commit=seen.masked, remask=seen.committed), state


def test_remasking_ends_at_the_cap():
    result = decode(rule=Restless(), **SHORT)
    per_position = np.zeros((3, result.tokens.shape[1] + 32), int)
    trace = result.trace
    remasked = trace.event_kind == Event.REMASK
    np.add.at(per_position, (trace.event_row[remasked], trace.event_position[remasked]), 1)
    assert per_position.max() <= Restless.most_remasks
    assert (result.nfe <= (1 + Restless.most_remasks) * 8).all()


def test_a_rule_ends_a_row():
    @lj.rule
    class First:
        def decide(self, seen, state):
            end = jnp.ones(seen.masked.shape[0], bool)
            return lj.Decision(commit=seen.masked, end=end), state

    result = decode(rule=First(), loop="host")
    assert result.nfe.tolist() == [1] * 3
    assert (result.trace.event_kind == Event.FILL).sum() == 3 * 16


@pytest.mark.parametrize("loop", ["compiled", pytest.param("host", marks=pytest.mark.slow)])
def test_a_rule_that_is_replaced_in_a_session_takes_effect(loop):
    def defined(bar):
        @lj.rule
        class Mine:
            def decide(self, seen, state):
                return lj.Decision(commit=seen.confidence >= bar), state

        return Mine()

    nfe = [decode(rule=defined(bar), loop=loop, **SHORT).nfe.sum() for bar in (0.0, 2.0)]
    assert nfe == [3, 24]


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (lambda seen: lj.Decision(seen.masked[:, :2]), r"rule Wrong: commit is bool\[3, 2\]"),
        (lambda seen: lj.Decision(commit=seen.confidence), r"rule Wrong: commit is float32"),
        (lambda seen: seen.masked, "rule Wrong decides"),
        (lambda seen: lj.Decision(seen.masked, confidence=seen.confidence * jnp.nan),
         "rule Wrong has NaN"),
    ],
)  # fmt: skip
def test_wrong_results_name_the_rule(decision, message):
    @lj.rule
    class Wrong:
        def decide(self, seen, state):
            return decision(seen), state

    with pytest.raises(ValueError, match=message):
        decode(rule=Wrong(), **SHORT)


def test_needs_that_do_not_exist_and_a_class_without_decide_are_refused():
    @lj.rule
    class Greedy:
        needs = frozenset({"everything"})

        def decide(self, seen, state):
            return lj.Decision(commit=seen.masked), state

    with pytest.raises(ValueError, match=r"rule Greedy needs \['everything'\]; allowed: c"):
        lj.SamplerConfig.from_flat(rule=Greedy())
    with pytest.raises(TypeError, match="rule Nothing has no decide"):

        @lj.rule
        class Nothing:
            pass


def test_the_head_computes_only_declared_measures():
    declared = {"klass": {"divergence"}, "credit": {"log_sum_exp", "listed"}, "prophet": {"top_k"}}
    for name, own in RULES.items():
        assert own.head_needs == declared.get(name, set())
    with pytest.raises(ValueError, match="rule KLASS needs divergence, which the backend does not"):
        run_without_measures("klass", "compiled")


def run_without_measures(name, loop):
    toy = replace(toy_denoiser(with_ids(lj.SamplerConfig(), TOY)), measure_rows=None)
    config = lj.SamplerConfig.from_flat(rule=RULES[name], **LENGTHS)
    return run(toy, jnp.int32(1), TOY, PROMPTS, config, loop=loop)


@pytest.mark.parametrize("name", mostly_slow(["rcr", "local_leap"], quick=("local_leap",)))
@pytest.mark.parametrize("loop", ["host", pytest.param("compiled", marks=pytest.mark.slow)])
def test_rules_that_declare_nothing_run_without_measures(name, loop):
    assert not (run_without_measures(name, loop).tokens == MASK).any()


def test_all_declared_measures_match_the_logits():
    shown = []

    @lj.rule
    class Curious:
        needs = frozenset(get_args(Need))
        top_k = 3
        revises, rescore = True, "token"

        def ask(self, state):
            listed = jnp.broadcast_to(jnp.array([5, -1], jnp.int32), (3, 8, 2))
            return lj.Ask(listed=listed)

        def decide(self, seen, state):
            jax.debug.callback(lambda **parts: shown.append(parts), ordered=True, **vars(seen))
            return lj.Decision(commit=seen.masked & (seen.confidence > 0.2)), state

    decode(salt=1, rule=Curious(), gen_length=16, steps=16)
    assert len(shown) > 3
    all_logits = jax.jit(toy_logits)
    for now, before in zip(shown[1:], shown, strict=False):
        at = (now["masked"] | now["rescored"]) & (now["position"] == before["position"])
        logits = np.array(all_logits(1, now["hidden"]))
        logits[..., MASK] = -np.inf
        p = log_softmax(logits, axis=-1)
        check = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
        check(now["log_sum_exp"][at], logsumexp(logits, axis=-1)[at])
        best = np.argsort(-logits, axis=-1, kind="stable")[..., :3]
        np.testing.assert_array_equal(now["top_ids"][at], best[at])
        check(now["top_logits"][at], np.take_along_axis(logits, best, axis=-1)[at])
        token = np.minimum(now["token"], VOCAB - 1)[..., None]
        check(now["current"][at], np.take_along_axis(p, token, axis=-1)[..., 0][at])
        check(now["listed"][at][:, 0], logits[at][:, 5])
        assert (now["listed"][at][:, 1] == -np.inf).all()
        check(now["margin"][at], np.ptp(np.sort(np.exp(p), axis=-1)[..., -2:], axis=-1)[at])
        scored = at & (before["masked"] | before["rescored"])
        logits = np.array(all_logits(1, before["hidden"]))
        logits[..., MASK] = -np.inf
        share, then = np.exp(p), log_softmax(logits, axis=-1)
        moved = share * (np.where(share > 0, p, 0) - np.where(share > 0, then, 0))
        check(now["divergence"][scored], moved.sum(axis=-1)[scored])
    first = shown[0]["divergence"][shown[0]["masked"]]
    assert (first == np.finfo(np.float32).max).all()


NONE = jnp.zeros((3, 8, 1), jnp.int32)


@pytest.mark.parametrize(
    ("needs", "ask", "message"),
    [
        ({"listed"}, lj.Ask(), r"rule Asks: listed is None; allowed: integer\[3, 8, any\]"),
        ({"listed"}, lj.Ask(NONE[:, :4]), r"listed is int32\[3, 4, 1\]; allowed: integer\[3, 8, a"),
        ({"listed"}, lj.Ask(NONE, jnp.zeros((3, 8))), r"added is float32\[3, 8\]; allowed: float"),
    ],
)
def test_bad_head_requests_name_the_rule(needs, ask, message):
    declared, answer = frozenset(needs), ask

    @lj.rule
    class Asks:
        needs = declared

        def ask(self, state):
            return answer

        def decide(self, seen, state):
            return lj.Decision(commit=seen.masked), state

    with pytest.raises(ValueError, match=message):
        decode(rule=Asks(), **SHORT)


def test_tokens_that_a_rule_forbids_are_never_predicted():
    forbidden = jnp.array([4, 7, 9], jnp.int32)

    @lj.rule
    class Forbids:
        needs = frozenset({"listed"})

        def ask(self, state):
            shape = (3, 8, 3)
            return lj.Ask(jnp.broadcast_to(forbidden, shape), jnp.full(shape, -jnp.inf))

        def decide(self, seen, state):
            return lj.Decision(commit=seen.masked & (seen.confidence > 0.2)), state

    plain, ours = decode(threshold=0.2), decode(rule=Forbids())
    found = [np.isin(np.concatenate(r.generated), np.asarray(forbidden)) for r in (plain, ours)]
    assert found[0].any() and not found[1].any()


SURE = Prophet(early=0.0, middle=0.0, late=0.0)


@pytest.mark.slow
def test_a_sure_prophet_fills_the_canvas():
    assert decode(rule=SURE, cache="none").nfe.tolist() == [1] * 3


@pytest.mark.slow
def test_a_sure_prophet_fills_the_window():
    assert decode(rule=SURE).nfe.tolist() == [3] * 3
    window = dict(window="multi_block", lookahead_trigger=8)
    assert (decode(rule=SURE, **window).nfe < 3).all()


DOUBTING = (RemaskByToken, RemaskByShadow, RemaskOnward)


@pytest.mark.parametrize(
    "rule", [*(pytest.param(rule, marks=pytest.mark.slow) for rule in DOUBTING[:2]), RemaskOnward]
)
def test_a_doubted_token_becomes_a_mask_again(rule):
    plain = decode(threshold=0.2)
    trusting, doubting = (decode(rule=rule(threshold=0.2, doubt=doubt)) for doubt in (0.0, 0.9))
    assert (trusting.tokens == plain.tokens).all()
    assert trusting.trace.count(Event.REMASK).sum() == 0
    assert (doubting.trace.count(Event.REMASK).sum(axis=0) > 0).all()
    assert (doubting.nfe > plain.nfe).all()


def test_tokens_after_a_doubted_token_are_masked_with_it():
    trace = decode(rule=RemaskOnward(threshold=0.2, doubt=0.5)).trace
    masked_again = 0
    for step, row in zip(*np.nonzero(trace.count(Event.REMASK)), strict=True):
        here = (trace.event_step == step) & (trace.event_row == row)
        again = set(trace.event_position[here & (trace.event_kind == Event.REMASK)].tolist())
        before = (trace.event_step < step) & (trace.event_row == row)
        state = {}
        for kind, position in zip(
            trace.event_kind[before], trace.event_position[before], strict=True
        ):
            state[int(position)] = kind == Event.COMMIT or (
                state.get(int(position), False) and kind != Event.REMASK
            )
        end = len(PROMPTS[row]) + 8 * (trace.block[step, row] + 1)
        behind = {at for at, stands in state.items() if stands and min(again) <= at < end}
        assert again <= behind
        masked_again += len(again) > 1
    assert masked_again > 0


@pytest.mark.slow
@pytest.mark.parametrize("rule", DOUBTING)
def test_a_remasking_rule_meets_the_guarantees(rule):
    check_rule(rule(threshold=0.2, doubt=0.2), salts=(2,), steps=12)


def test_the_trace_names_the_rule():
    settings = decode(rule=RULES["local_leap"]).trace.settings
    path = "tests.sampler.user_rules.local_leap:LocalLeap"
    assert settings["sampler"]["accept"] == path and settings["sampler"]["radius"] == 2
    assert len(settings["rule_sha256"]) == 64
    again = lj.SamplerConfig.from_flat(settings["sampler"])
    assert again.rule == RULES["local_leap"] and again.rule.name == path
    path = "tests.sampler.user_rules.klass:KLASS"
    every = {**lj.SamplerConfig().as_dict(), "accept": path, "divergence": 0.5}  # as Hydra gives it
    assert lj.SamplerConfig.from_flat(every).rule == KLASS(divergence=0.5)
    with pytest.raises(ValueError, match="accept is 'nowhere:X': No module named"):
        lj.SamplerConfig.from_flat(accept="nowhere:X")
    config = lj.SamplerConfig.from_flat(rule=KLASS(), threshold=0.5)
    assert (
        config.rule == KLASS(threshold=0.5)
        and config.replace(divergence=0.5).rule.divergence == 0.5
    )
    assert config.replace(accept="quota", cache="dual") == lj.SamplerConfig.from_flat(cache="dual")
    assert jax.tree.leaves(config) == [0.5, 0.01]
    with pytest.raises(ValueError, match=r"^accept is '\.\./x:y'; allowed: module:Class$"):
        lj.SamplerConfig.from_flat(accept="../x:y")
