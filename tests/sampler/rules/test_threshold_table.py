"""Thresholds by step and position: which masks are committed."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.sampler.rules import Threshold
from llada_jax.sampler.rules.rule import Observation, RuleState
from llada_jax.sampler.rules.threshold_table import ThresholdTable
from llada_jax.testing import check_rule

CONFIDENCE = jnp.array([[0.3, 0.6, 0.8, 1.0]], jnp.float32)
SEEN = Observation(
    position=jnp.arange(4)[None], token=jnp.zeros((1, 4), int), predicted=jnp.zeros((1, 4), int),
    confidence=CONFIDENCE, masked=jnp.array([[True, True, True, True]]),
    committed=jnp.zeros((1, 4), bool), rescored=jnp.zeros((1, 4), bool), priority=CONFIDENCE,
    step=jnp.array([0]), block_masks=jnp.array([4]), quota=jnp.array([1]),
)  # fmt: skip


def committed(rule, **changes):
    decision, _ = rule.decide(replace(SEEN, **changes), RuleState())
    return np.asarray(decision.commit)[0].tolist()


def test_without_offsets_it_is_one_threshold():
    assert committed(ThresholdTable(shift=0.0)) == committed(Threshold(threshold=0.5))


def test_an_infinite_shift_commits_one_token():
    assert committed(ThresholdTable(shift=float("inf"))) == [False, False, False, True]


def test_offsets_are_by_step_and_position():
    rule = ThresholdTable(shift=0.0, offsets=((0, 9, 9, 0), (-9, 9, 9, 0)))  # pyright: ignore
    assert committed(rule) == [False, False, False, True]
    for step in (1, 2):  # the last row is for all later steps
        assert committed(rule, step=jnp.array([step])) == [True, False, False, True]


@pytest.mark.parametrize("offsets", [(), ((0.0,), (0.0, 1.0))])
def test_rows_of_other_lengths_are_refused(offsets):
    with pytest.raises(ValueError, match="allowed: 1 or more rows of one length"):
        ThresholdTable(shift=0.0, offsets=offsets)


def test_a_table_of_another_block_length_is_refused():
    with pytest.raises(ValueError, match="offsets has 2 columns; allowed: 1, or block_length"):
        committed(ThresholdTable(shift=0.0, offsets=((0.0, 0.0),)))


def test_a_preset_file_has_the_table(tmp_path):
    name = "llada_jax.sampler.rules.threshold_table:ThresholdTable"
    file = tmp_path / "table.json"
    sampler = {"accept": name, "shift": 1.0, "offsets": [[0.0, 1.0]]}
    file.write_text(json.dumps({"sampler": sampler}))
    rule = ThresholdTable(shift=1.0, offsets=((0.0, 1.0),))
    assert lj.SamplerConfig.preset(str(file)).rule == rule


@pytest.mark.slow
def test_it_meets_the_guarantees():
    check_rule(ThresholdTable(shift=-1.2, offsets=((0.0,) * 8, (-0.3,) * 8)))
