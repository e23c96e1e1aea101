"""Rules that a user writes in a file of their own: six published ones, and what is guaranteed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.sampler.trace import Event
from llada_jax.testing import PROMPTS, check_rule, toy_decode
from tests.sampler.user_rules.credit import CreditDecoding
from tests.sampler.user_rules.klass import KLASS
from tests.sampler.user_rules.local_leap import LocalLeap
from tests.sampler.user_rules.prophet import Prophet
from tests.sampler.user_rules.rcr import RCR
from tests.sampler.user_rules.saber import Saber

LENGTHS = dict(gen_length=24, block_length=8, steps=12, cache="blockwise")
SHORT = dict(gen_length=8, block_length=8, steps=8)
RULES = {
    "klass": KLASS(threshold=0.2, divergence=1.0, history=1),
    "credit": CreditDecoding(threshold=0.3),
    "prophet": Prophet(early=0.6, middle=0.4, late=0.2),
    "local_leap": LocalLeap(anchor=0.3, near=0.2, radius=2),
    "rcr": RCR(),
    "saber": Saber(),
}


def decode(salt=1, loop="compiled", **settings):
    return toy_decode(PROMPTS, lj.SamplerConfig(**{**LENGTHS, **settings}), salt=salt, loop=loop)


def mostly_slow(names, quick):
    marks = {name: [] if name in quick else pytest.mark.slow for name in names}
    return [pytest.param(name, marks=mark) for name, mark in marks.items()]


@pytest.mark.parametrize("name", mostly_slow(RULES, quick=("klass", "rcr")))
def test_every_rule_does_what_it_owes(name):
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


@pytest.mark.parametrize("name", mostly_slow(NEUTRAL, quick=("credit", "local_leap")))
def test_neutral_settings_equal_a_rule_of_the_house(name):
    own, house = NEUTRAL[name]
    for salt in (1, 2, 3):
        ours = decode(salt, rule=own, steps=24)
        theirs = decode(salt, steps=24, **house)
        np.testing.assert_array_equal(ours.trace.commit_steps(), theirs.trace.commit_steps())
        np.testing.assert_array_equal(ours.tokens, theirs.tokens)


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


def test_a_threshold_above_one_is_one_token_a_forward():
    result = decode(rule=LocalLeap(anchor=2.0, near=2.0))
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
    result = decode(rule=Restless())
    per_position = np.zeros((3, result.tokens.shape[1] + 32), int)
    trace = result.trace
    remasked = trace.event_kind == Event.REMASK
    np.add.at(per_position, (trace.event_row[remasked], trace.event_position[remasked]), 1)
    assert per_position.max() <= Restless.most_remasks
    assert (result.nfe <= (1 + Restless.most_remasks) * 24).all()


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


def test_needs_that_do_not_exist_and_classes_without_decide_are_refused():
    @lj.rule
    class Greedy:
        needs = frozenset({"everything"})

        def decide(self, seen, state):
            return lj.Decision(commit=seen.masked), state

    with pytest.raises(ValueError, match=r"rule Greedy needs \['everything'\]; allowed: c"):
        lj.SamplerConfig(rule=Greedy())
    with pytest.raises(TypeError, match="rule Nothing has no decide"):

        @lj.rule
        class Nothing:
            pass


def test_logits_are_only_computed_where_they_are_declared():
    from llada_jax.sampler.setup import Setup
    from llada_jax.testing import TOY

    for name, own in RULES.items():
        setup = Setup(TOY, lj.SamplerConfig(rule=own))
        assert setup.needs_logits == (name in ("klass", "credit", "prophet"))
    assert not Setup(TOY, lj.SamplerConfig(threshold=0.9)).needs_logits


def test_the_trace_says_which_rule_ran():
    settings = decode(rule=RULES["klass"]).trace.settings
    assert settings["sampler"]["accept"] == "KLASS"
    assert settings["sampler"]["divergence"] == 1.0
    assert len(settings["rule_sha256"]) == 64
    config = lj.SamplerConfig(rule=KLASS(), threshold=0.5)
    assert config.rule == KLASS(threshold=0.5) and config.replace(divergence=0.5).divergence == 0.5
    assert config.replace(accept="quota", cache="dual") == lj.SamplerConfig(cache="dual")
    assert jax.tree.leaves(config) == [0.5, 0.01]
