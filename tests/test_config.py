"""Settings check themselves."""

import pydoc
import re
from dataclasses import fields

import pytest

from llada_jax.config import LatencyTable, ModelConfig, MoEConfig, SamplerConfig

SHAPE = dict(
    family="llada", vocab_size=32, width=8, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=4,
    ffn_width=16, rope_theta=1e4, norm_eps=1e-5, max_length=64,
)  # fmt: skip


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
        ({"factor": -1.0}, "factor is -1.0; allowed: 0 or more"),
        ({"entropy_bound": -0.1}, "entropy_bound is -0.1; allowed: 0 or more"),
        ({"threshold": 0.9, "factor": 1.0}, "allowed: at most one of them"),
        ({"temperature": -1.0}, "temperature is -1.0; allowed: 0 or more"),
        ({"cfg_scale": -1.0}, "cfg_scale is -1.0; allowed: 0 or more"),
        ({"cache": "full"}, "cache is 'full'; allowed: 'none', 'prefix', 'dual', 'blockwise'"),
        ({"remasking": "best"}, "remasking is 'best'; allowed: 'low_confidence', 'random'"),
        ({"confidence_dtype": "bfloat16"}, "confidence_dtype is 'bfloat16'; allowed"),
        ({"tie_break": "first"}, "tie_break is 'first'; allowed"),
        ({"forced_progress": "none"}, "forced_progress is 'none'; allowed"),
    ],
)
def test_sampler_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        SamplerConfig(**settings)


def test_presets():
    assert SamplerConfig.preset("llada").accept == "quota"
    fast = SamplerConfig.preset(
        "fast_dllm", gen_length=32, block_length=8, steps=32, cache="dual", threshold=0.5
    )
    assert (fast.accept, fast.threshold, fast.confidence_dtype) == ("threshold", 0.5, "float64")
    with pytest.raises(ValueError, match="preset is 'slow'; allowed: 'llada', 'fast_dllm'"):
        SamplerConfig.preset("slow")


def test_defaults_are_the_house_rules():
    config = SamplerConfig()
    assert config.confidence_dtype == "float32" and not config.strict_threshold
    assert config.forced_progress == "top1" and config.tie_break == "lowest_index"
    assert not config.predict_mask


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_kv_heads": 3}, r"n_kv_heads is 3; allowed: a divisor of n_heads \(2\)"),
        ({"rotary_dims": 3}, "rotary_dims is 3; allowed: even"),
        ({"mask_id": 32}, "mask_id is 32; allowed: 0 to 31"),
        ({"width": 0}, "width is 0; allowed: 1 or more"),
    ],
)
def test_model_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**{**SHAPE, **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"experts_per_token": 9}, "experts_per_token is 9; allowed: 1 to n_experts"),
        ({"n_groups": 3}, "n_groups is 3; allowed: a divisor of n_experts"),
        ({"groups_per_token": 2}, "groups_per_token is 2; allowed: 1 to n_groups"),
        ({"router": "hash"}, "router is 'hash'; allowed: 'softmax', 'sigmoid'"),
    ],
)
def test_expert_settings(settings, message):
    shape = dict(n_experts=8, experts_per_token=2, expert_width=4)
    with pytest.raises(ValueError, match=message):
        MoEConfig(**{**shape, **settings})


def test_replace_checks_again():
    with pytest.raises(ValueError, match="steps is 3"):
        SamplerConfig().replace(steps=3)
    assert ModelConfig(**SHAPE).replace(width=16).width == 16


MULTI = {"window": "multi_block", "cache": "blockwise", "threshold": 0.9}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"theta_visible": 0.95, "theta_stable": 0.9},
            r"theta_visible is 0.95; allowed: up to theta_stable \(0.9\)",
        ),
        ({"theta_visible": 0.0}, "theta_visible is 0.0; allowed: above 0, up to 1"),
        (
            {**MULTI, "lookahead_trigger": 33},
            r"lookahead_trigger is 33; allowed: 0 to block_length \(32\)",
        ),
        ({**MULTI, "lookahead_trigger": -1}, "lookahead_trigger is -1; allowed: 0 or more"),
        ({**MULTI, "latency_allowance": 0.5}, "latency_allowance is 0.5; allowed: 1 or more"),
        ({**MULTI, "row_budget": 8}, r"row_budget is 8; allowed: a whole number from block_length"),
        ({**MULTI, "row_budget": 64.0}, r"row_budget is 64.0; allowed: a whole number from block"),
        (
            {**MULTI, "latency_table": {"rows": [32], "ms": [1.0]}},
            r"latency_table is \{'rows': \[32\].*; allowed: a LatencyTable, or None",
        ),
        (
            {**MULTI, "latency_table": LatencyTable(rows=(8, 16), ms=(1.0, 2.0))},
            r"latency_table.rows is \[8, 16\]; allowed: up to block_length \(32\) at the least",
        ),
        (
            {**MULTI, "cache": "dual"},
            "cache is 'dual' and window is 'multi_block'; allowed: 'block",
        ),
        ({**MULTI, "threshold": None}, "accept is 'quota', which accepts no draft; allowed: with"),
        (
            {**MULTI, "threshold": None, "entropy_bound": 0.5},
            "accept is 'entropy_bound', which accepts the best draft however unsure it is; al",
        ),
        (
            {**MULTI, "lossless": True, "draft_scores": "next_forward"},
            "draft_scores is 'next_forward', which nothing reads; allowed: 'same_forward'",
        ),
        (
            {**MULTI, "draft_threshold": 0.5, "draft_scores": "next_forward"},
            "draft_threshold is 0.5 and draft_scores is 'next_forward'; allowed: None",
        ),
        ({"draft_scores": "last_forward"}, "draft_scores is 'last_forward'; allowed: 'same_forwar"),
        (
            {**MULTI, "lossless": True, "threshold": None, "accept": "staged"},
            "accept is 'staged' and lossless is True; allowed: a rule that never changes a token",
        ),
        ({"accept": "threshold"}, "accept is 'threshold' and threshold is None; allowed: a number"),
        ({"accept": "staged", "threshold": 0.9}, "threshold is 0.9; allowed: threshold None"),
        ({"accept": "factor", "threshold": 0.9}, "accept is 'factor' and threshold is 0.9"),
        ({"accept": "staged", "cache": "prefix"}, "cache is 'prefix' and accept is 'staged'"),
        ({"accept": "wino", "temperature": 0.5}, "temperature is 0.5 and accept is 'wino'"),
        ({"accept": "staged", "predict_mask": True}, "predict_mask is True and accept is 'staged'"),
        ({"accept": "wino", "rescore": "token"}, "rescore is 'token' and accept is 'wino'"),
        ({"accept": "wino", "wino_verify": 0.5}, "wino_verify is 0.5; allowed: above 0.5"),
        (
            {"accept": "staged", "refresh": "worker"},
            "cache is 'none' and refresh is 'worker'; allowed: 'blockwise'",
        ),
        ({"refresh_rows": 0}, "refresh_rows is 0; allowed: 1 or more"),
        ({"refresh": "gpu"}, "refresh is 'gpu'; allowed: 'none', 'rows', 'worker'"),
        ({"accept": "best"}, "accept is 'best'; allowed: 'quota', 'threshold'"),
    ],
)
def test_settings_of_windows_and_revision(settings, message):
    with pytest.raises(ValueError, match=message):
        SamplerConfig(**settings)


TABLE = LatencyTable(rows=(32, 64), ms=(1.0, 2.0))
STAGED = {"cache": "blockwise", "accept": "staged"}
UNREAD = [
    ({}, "window is 'multi_block'", {"lossless": True, "lookahead_trigger": 2}),
    (
        STAGED,
        "window is 'multi_block' and lossless is False",
        {
            "latency_table": TABLE,
            "row_budget": 64,
            "draft_feed": "token",
            "draft_threshold": 0.5,
        },
    ),
    (
        {**MULTI, "lossless": True},
        "window is 'multi_block' and lossless is False",
        {
            "latency_table": TABLE,
            "row_budget": 64,
            "draft_feed": "token",
            "draft_threshold": 0.5,
        },
    ),
    (MULTI, "latency_table is given", {"latency_allowance": 3.0}),
    (MULTI, "lossless is True", {"guess_threshold": 0.5}),
    (
        {"accept": "wino"},
        "accept is 'staged'",
        {"theta_visible": 0.6, "theta_stable": 0.8, "refresh": "worker", "end_steps": 1},
    ),
    (
        {**STAGED, "refresh": "none"},
        "accept is 'staged', cache 'blockwise' and refresh not 'none'",
        {"refresh_rows": 1, "refresh_order": "leftmost", "refresh_overflow": "drop"},
    ),
    (STAGED, "accept is 'wino'", {"wino_accept": 0.5, "wino_verify": 0.8}),
    (
        {"accept": "wino"},
        "accept is 'token_edit'",
        {"edit_unmask": 0.6, "edit_replace": 0.6, "edit_steps": 1},
    ),
    (MULTI, "accept is 'staged', 'wino' or 'token_edit'", {"rescore": "token"}),
]


@pytest.mark.parametrize(
    ("settings", "where", "name", "value"),
    [
        pytest.param(settings, where, name, value, id=f"{name}-{case}")
        for case, (settings, where, unread) in enumerate(UNREAD)
        for name, value in unread.items()
    ],
)
def test_a_setting_that_nothing_reads_keeps_its_default(settings, where, name, value):
    default = getattr(SamplerConfig(), name)
    message = (
        f"{name} is {value!r}, which nothing reads; allowed: {default!r}, or another one where "
        f"{where}"
    )
    with pytest.raises(ValueError) as refused:
        SamplerConfig(**settings, **{name: value})
    assert str(refused.value) == message
    assert SamplerConfig(**settings, **{name: default}) == SamplerConfig(**settings)


def test_a_block_shorter_than_the_trigger_names_both():
    with pytest.raises(
        ValueError, match=r"lookahead_trigger is 4; allowed: 0 to block_length \(2\)"
    ):
        SamplerConfig.preset("llada_cpp", block_length=2)
    SamplerConfig.preset("llada_cpp", block_length=2, lookahead_trigger=2)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"rows": (64, 32), "ms": (1.0, 2.0)},
            r"latency_table.rows is \[64, 32\]; allowed: ascend",
        ),
        ({"rows": (32, 32), "ms": (1.0, 2.0)}, "allowed: ascending"),
        ({"rows": (), "ms": ()}, "at least one"),
        ({"rows": (32.0,), "ms": (1.0,)}, r"rows is \[32.0\]; .* at least one whole number"),
        ({"rows": 32, "ms": 1.0}, "latency_table.rows is 32; allowed: ascending"),
        ({"rows": (32,), "ms": 1.0}, "latency_table.ms is 1.0; allowed: 1 numbers"),
        ({"rows": (32,), "ms": ("fast",)}, r"latency_table.ms is \['fast'\]; allowed: 1 numbers"),
        ({"rows": (32,), "ms": (float("inf"),)}, r"latency_table.ms is \[inf\]; allowed"),
        ({"rows": (32, 64), "ms": (1.0,)}, r"latency_table.ms is \[1.0\]; allowed: 2 numbers"),
        ({"rows": (32,), "ms": (0.0,)}, "allowed: 1 numbers above 0"),
    ],
)
def test_latency_tables(table, message):
    with pytest.raises(ValueError, match=message):
        LatencyTable(**table)


def test_the_rule_follows_the_number_that_is_set():
    threshold = SamplerConfig(threshold=0.9)
    assert threshold.accept == "threshold"
    assert threshold.replace(threshold=None).accept == "quota"
    assert threshold.replace(threshold=None, factor=1.0).accept == "factor"
    assert threshold.replace(threshold=None, accept="staged").accept == "staged"
    assert SamplerConfig(accept="threshold", threshold=0.9) == threshold


def test_the_preset_of_llada_cpp_can_be_switched_off_part_by_part():
    config = SamplerConfig.preset("llada_cpp")
    assert (config.window, config.cache, config.accept) == ("multi_block", "blockwise", "staged")
    assert (config.theta_visible, config.theta_stable, config.lookahead_trigger) == (0.7, 0.9, 4)
    assert config.refreshes and config.selective_logits
    for part in (
        {"window": "by_cache"},
        {"slide": False},
        {"lookahead_trigger": 0},
        {"accept": "quota", "threshold": 0.9},
        {"refresh": "none"},
        {"selective_logits": False},
    ):
        SamplerConfig.preset("llada_cpp", **part)
    for contradiction in (
        {"cache": "dual"}, {"threshold": 0.9}, {"lossless": True}, {"wino_accept": 0.5}
    ):  # fmt: skip
        with pytest.raises(ValueError, match="allowed"):
            SamplerConfig.preset("llada_cpp", **contradiction)
    for name in ("multi_block", "staged", "wino", "token_edit"):
        SamplerConfig.preset(name)


def test_help_describes_every_setting():
    described = pydoc.render_doc(SamplerConfig, renderer=pydoc.plaintext)
    for setting in fields(SamplerConfig):
        assert re.search(rf"^ *\|? *{setting.name}: \w", described, re.MULTILINE), setting.name
