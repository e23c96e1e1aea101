"""Settings check themselves."""

import inspect
import json
import math
import re

import jax
import pytest

import llada_jax as lj
from llada_jax.config import HOUSE, LatencyTable, Parity
from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.flat import RETIRED
from llada_jax.sampler.rules import Quota, Staged, Threshold
from llada_jax.sampler.windows import DualCache, MultiBlock


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gen_length": 100}, "gen_length is 100; allowed: a multiple of block_length"),
        ({"steps": 127}, r"steps is 127; allowed: a multiple of the number of blocks \(4\)"),
        ({"steps": 0}, "steps is 0; allowed: 1 or more"),
        ({"block_length": 0}, "block_length is 0; allowed: 1 or more"),
        ({"gen_length": 2.5}, "gen_length is 2.5; allowed: 1 or more"),
        ({"threshold": 0.0}, "threshold is 0.0; allowed: above 0, up to 1"),
        ({"threshold": 1.1}, "threshold is 1.1; allowed"),
        ({"threshold": float("nan")}, "threshold is nan; allowed"),
        ({"accept": "entropy_distance", "max_entropy": -0.1}, "max_entropy is -0.1; allowed: 0 or"),
        ({"temperature": -1.0}, "temperature is -1.0; allowed: 0 or more"),
        ({"temperature": math.inf}, "temperature is inf; allowed: 0 or more, and finite"),
        ({"temperature": "1"}, "temperature is '1'; allowed: 0 or more"),
        (
            {"accept": "entropy_distance", "max_entropy": math.inf},
            "max_entropy is inf; allowed: 0 or more, and finite",
        ),
        ({"cfg_scale": -1.0}, "cfg_scale is -1.0; allowed: 0 or more"),
        ({"cache": "full"}, "cache is 'full'; allowed: 'none', 'prefix', 'dual', 'blockwise'"),
        ({"remasking": "best"}, "remasking is 'best'; allowed: 'low_confidence', 'random'"),
        ({"confidence_dtype": "bfloat16"}, "confidence_dtype is 'bfloat16'; allowed"),
        ({"forced_progress": "none"}, "forced_progress is 'none'; allowed"),
    ],
)
def test_sampler_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        SamplerConfig.from_flat(**settings)


def test_presets():
    assert SamplerConfig.preset("llada").rule == Quota()
    fast = SamplerConfig.preset(
        "fast_dllm", gen_length=32, block_length=8, steps=32, cache="dual", threshold=0.5
    )
    assert fast.rule == Threshold(threshold=0.5) and fast.parity.confidence_dtype == "float64"
    with pytest.raises(ValueError, match="preset is 'slow'; allowed: 'llada', 'threshold', "):
        SamplerConfig.preset("slow")


def test_defaults_are_the_recommended_settings():
    parity = SamplerConfig().parity
    assert parity.confidence_dtype == "float32" and not parity.strict_threshold
    assert parity.forced_progress == "top1"
    assert not parity.predict_mask


def test_replace_checks_again():
    with pytest.raises(ValueError, match="steps is 3"):
        SamplerConfig().replace(steps=3)


MULTI = {"window": "multi_block", "cache": "blockwise", "threshold": 0.9}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"accept": "staged", "theta_visible": 0.95, "theta_stable": 0.9},
            r"theta_visible is 0.95; allowed: up to theta_stable \(0.9\)",
        ),
        (
            {"accept": "staged", "theta_visible": 0.0},
            "theta_visible is 0.0; allowed: above 0, up to 1",
        ),
        (
            {**MULTI, "lookahead_trigger": 33},
            r"lookahead_trigger is 33; allowed: 0 to block_length \(32\)",
        ),
        ({**MULTI, "lookahead_trigger": -1}, "lookahead_trigger is -1; allowed: 0 to block_length"),
        ({**MULTI, "row_budget": 8}, r"row_budget is 8; allowed: a whole number from block_length"),
        ({**MULTI, "row_budget": 64.0}, r"row_budget is 64.0; allowed: a whole number from block"),
        (
            {**MULTI, "latency_table": {"rows": [32]}},
            r"latency_table is \{'rows': \[32\].*; allowed: a LatencyTable, a phone",
        ),
        (
            {**MULTI, "latency_table": LatencyTable(rows=(8, 16), ms=(1.0, 2.0))},
            r"latency_table.rows is \[8, 16\]; allowed: up to block_length \(32\) at the least",
        ),
        (
            {**MULTI, "cache": "dual"},
            "cache is 'dual' and window is 'multi_block'; allowed: 'block",
        ),
        ({**MULTI, "threshold": None}, "accept is 'quota', which accepts no drafts; allowed: with"),
        (
            {**MULTI, "threshold": None, "accept": "entropy_distance"},
            "accept is 'entropy_distance', which accepts no drafts; allowed: with draft_th",
        ),
        ({"accept": "threshold"}, "accept is 'threshold' and threshold is None; allowed: a number"),
        ({"accept": "staged", "threshold": 0.9}, "threshold is 0.9; allowed: threshold None"),
        ({"accept": "staged", "cache": "prefix"}, "cache is 'prefix' and accept is 'staged'"),
        ({"accept": "wino", "temperature": 0.5}, "temperature is 0.5 and accept is 'wino'"),
        ({"accept": "staged", "predict_mask": True}, "predict_mask is True and accept is 'staged'"),
        ({"accept": "wino", "rescore": "token"}, "rescore is 'token', which nothing reads"),
        ({"accept": "wino", "wino_verify": 0.5}, "wino_verify is 0.5; allowed: above 0.5"),
        (
            {"accept": "staged", "refresh": "worker"},
            "cache is 'none' and refresh is 'worker'; allowed: 'blockwise'",
        ),
        (
            {"accept": "staged", "refresh": "gpu"},
            "refresh is 'gpu'; allowed: 'none', 'rows', 'worker'",
        ),
        ({"accept": "staged", "on_change": "redo"}, "on_change is 'redo'; allowed: 'keep', 'rema"),
        ({"latency_table": "SM1"}, "latency_table is 'SM1'; allowed: SM8650, SM8750, SM8850"),
        ({"accept": "best"}, "accept is 'best'; allowed: 'quota', 'threshold'"),
    ],
)
def test_settings_of_windows_and_revision(settings, message):
    with pytest.raises(ValueError, match=message):
        SamplerConfig.from_flat(**settings)


TABLE = LatencyTable(rows=(32, 64), ms=(1.0, 2.0))
STAGED = {"cache": "blockwise", "accept": "staged"}
ELSEWHERE = [
    ({}, "window is 'multi_block'",
     {"lookahead_trigger": 2, "row_budget": 64, "draft_threshold": 0.5}),
    ({"accept": "wino"}, "accept is 'staged'",
     {"theta_visible": 0.6, "theta_stable": 0.8, "refresh": "worker", "end_steps": 1}),
    (STAGED, "accept is 'wino'", {"wino_accept": 0.5, "wino_verify": 0.8}),
    ({"accept": "wino"}, "accept is 'token_edit'", {"edit_replace": 0.6, "edit_steps": 1}),
    (MULTI, "accept is 'staged' or accept is 'token_edit'", {"rescore": "token"}),
]  # fmt: skip


def test_settings_of_unused_policies_must_keep_their_defaults():
    for settings, where, others in ELSEWHERE:
        for name, value in others.items():
            default = SamplerConfig().as_dict()[name]
            with pytest.raises(ValueError) as refused:
                SamplerConfig.from_flat(**settings, **{name: value})
            assert str(refused.value) == (
                f"{name} is {value!r}, which nothing reads; allowed: {default!r}, or another one "
                f"where {where}"
            )
            same = SamplerConfig.from_flat(**settings, **{name: default})
            assert same == SamplerConfig.from_flat(**settings)


def test_retired_settings_of_stored_files_are_read_if_they_have_no_effect():
    stored = {**SamplerConfig.preset("staged").as_dict(), **RETIRED}
    assert SamplerConfig.from_flat(stored) == SamplerConfig.preset("staged")
    with pytest.raises(
        ValueError, match="selective_logits is False, which nothing reads; allowed: True"
    ):
        SamplerConfig.from_flat(selective_logits=False)
    with pytest.raises(ValueError, match="refresh_rows is 8, which nothing reads; allowed: 4"):
        SamplerConfig.preset("staged", refresh_rows=8)
    assert RETIRED.keys().isdisjoint(SamplerConfig.preset("staged").as_dict())


def test_an_unknown_name_is_refused_with_a_suggestion():
    for name, hint in (
        ("tresh", "did you mean threshold?"),
        ("theta_stabel", "did you mean theta_stable?"),
    ):
        with pytest.raises(ValueError, match=rf"^{name}: {re.escape(hint)}"):
            SamplerConfig.from_flat(**{name: 0.5})
    with pytest.raises(ValueError, match=r"^zzz: allowed: gen_length, block_length, steps"):
        SamplerConfig().replace(zzz=1)


def test_policies_are_values_with_flat_names():
    config = SamplerConfig.from_flat(rule=Threshold(threshold=0.5), window=DualCache())
    assert config == SamplerConfig.from_flat(threshold=0.5, cache="dual") and hash(config)
    flat = config.as_dict()
    assert (flat["threshold"], flat["accept"], flat["cache"]) == (0.5, "threshold", "dual")
    assert config.replace(threshold=0.7).rule == Threshold(threshold=0.7)
    assert config.replace(rule=Quota(), window="by_cache", cache="none") == SamplerConfig()
    assert config.replace(window=MultiBlock(row_budget=40)).window.row_budget == 40
    assert SamplerConfig.from_flat(rule=Staged(), theta_visible=0.6).rule.theta_visible == 0.6
    assert config.parity == HOUSE and config.replace(forced_progress="quota").parity == Parity(
        forced_progress="quota"
    )


@pytest.mark.parametrize("name", ["llada", "fast_dllm", "llada_cpp", "token_edit"])
def test_flat_settings_survive_a_round_trip_through_a_dict(name):
    config = SamplerConfig.preset(name, block_length=16)
    if name == "llada_cpp":
        config = config.replace(latency_table=TABLE)
    flat = config.as_dict()
    assert flat.keys() == SamplerConfig.setting_types().keys()
    assert SamplerConfig.from_flat(json.loads(json.dumps(flat))) == config


def test_steps_follow_the_length_unless_they_are_set():
    assert SamplerConfig.from_flat(gen_length=256).steps == 256
    assert SamplerConfig.from_flat(gen_length=256, steps=128).steps == 128
    assert SamplerConfig().replace(gen_length=64).steps == 64
    assert SamplerConfig.from_flat(steps=64).replace(gen_length=256).steps == 64
    assert SamplerConfig.from_flat(gen_length=64, steps=None).steps == 64


def test_numbers_are_pytree_leaves_and_choices_are_not():
    config = SamplerConfig.preset("llada_cpp", draft_threshold=0.8)
    assert jax.tree.leaves(config) == [0.7, 0.9, 0.8]
    other = jax.tree.map(lambda number: number / 2, config)
    assert other.rule.theta_stable == 0.45 and jax.tree.structure(other) == jax.tree.structure(
        config
    )
    for change in ({"end_steps": 1}, {"on_change": "remask"}, {"latency_table": TABLE}):
        assert jax.tree.structure(config.replace(**change)) != jax.tree.structure(config)


def test_a_block_shorter_than_the_trigger_names_both():
    with pytest.raises(
        ValueError, match=r"lookahead_trigger is 4; allowed: 0 to block_length \(2\)"
    ):
        SamplerConfig.preset("llada_cpp", block_length=2)
    SamplerConfig.preset("llada_cpp", block_length=2, lookahead_trigger=2)


def test_the_rule_is_chosen_by_the_number_that_is_set():
    threshold = SamplerConfig.from_flat(threshold=0.9)
    assert threshold.rule == Threshold(threshold=0.9)
    assert threshold.replace(threshold=None).rule == Quota()
    assert threshold.replace(threshold=None, accept="staged").rule == Staged()
    assert SamplerConfig.from_flat(accept="threshold", threshold=0.9) == threshold


def test_the_preset_of_llada_cpp_can_be_switched_off_part_by_part():
    config = SamplerConfig.preset("llada_cpp")
    assert config.window == MultiBlock() and config.rule == Staged()
    assert config.latency_table == LatencyTable.named("SM8750") and config.eos_early_stop
    flat = config.as_dict()
    numbers = [flat[name] for name in ("theta_visible", "theta_stable", "lookahead_trigger")]
    assert numbers == [0.7, 0.9, 4]
    assert config.refreshes
    for part in (
        {"window": "by_cache"},
        {"lookahead_trigger": 0},
        {"accept": "quota", "threshold": 0.9},
        {"refresh": "none"},
    ):
        SamplerConfig.preset("llada_cpp", **part)
    for contradiction in (
        {"cache": "dual"}, {"threshold": 0.9}, {"wino_accept": 0.5}
    ):  # fmt: skip
        with pytest.raises(ValueError, match="allowed"):
            SamplerConfig.preset("llada_cpp", **contradiction)
    for name in ("multi_block", "staged", "wino", "token_edit"):
        SamplerConfig.preset(name)


def test_help_describes_every_setting():
    described = inspect.getdoc(lj.SamplerConfig) or ""
    for name in (*SamplerConfig.setting_types(), "rule", "parity"):
        found = re.findall(rf"^ *{name}: \w", described, re.MULTILINE)
        found += re.findall(rf"^ *\|? *{name}: `", described, re.MULTILINE)
        assert len(found) == 1, name
