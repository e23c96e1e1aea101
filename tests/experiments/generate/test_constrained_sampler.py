"""A constraint on the command line is at most one of three, and only `generate` has it."""

import json

import pytest

import llada_jax as lj
from experiments.generate.__main__ import ConstrainedSampler, ConstraintSettings


def test_settings_make_the_constraint_that_is_asked_for(tmp_path):
    assert ConstraintSettings().made() is None
    assert ConstraintSettings(regex="a+", confidence="raw").made() == lj.regex(
        "a+", confidence="raw"
    )
    assert ConstraintSettings(choice=("a", "b")).made() == lj.choice(["a", "b"])
    schema = json.dumps({"type": "integer"})
    (tmp_path / "schema.json").write_text(schema)
    for given in (schema, str(tmp_path / "schema.json")):
        assert ConstraintSettings(json_schema=given).made() == lj.json_schema(schema)


def test_two_of_them_and_no_file_are_refused(tmp_path):
    with pytest.raises(ValueError, match="regex, choice are set; allowed: one"):
        ConstraintSettings(regex="a", choice=("a",)).made()
    with pytest.raises(ValueError, match="allowed: a file"):
        ConstraintSettings(json_schema=str(tmp_path / "none.json")).made()


def test_a_sampler_of_generate_alone_has_it():
    sampler = ConstrainedSampler(ConstraintSettings(choice=("a",)), threshold=0.8)
    assert sampler.config == lj.SamplerConfig(threshold=0.8)
    assert sampler.constraint == lj.choice(["a"])
    with pytest.raises((TypeError, ValueError), match="constraint"):
        lj.SamplerConfig(constraint=lj.choice(["a"]))  # pyright: ignore
