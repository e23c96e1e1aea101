"""Shapes of models check themselves."""

import math

import pytest

from llada_jax.config import ModelConfig, MoEConfig

SHAPE = dict(
    family="llada", vocab_size=32, width=8, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=4,
    ffn_width=16, rope_theta=1e4, norm_eps=1e-5, max_length=64,
)  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_kv_heads": 3}, r"n_kv_heads is 3; allowed: a divisor of n_heads \(2\)"),
        ({"rotary_dims": 3}, "rotary_dims is 3; allowed: even"),
        ({"mask_id": 32}, "mask_id is 32; allowed: 0 to 31"),
        ({"width": 0}, "width is 0; allowed: 1 to 16777216"),
        ({"mask_id": 1.5}, "mask_id is 1.5; allowed: 0 to 31"),
        ({"rope_theta": math.nan}, "rope_theta is nan; allowed: above 0, and finite"),
        ({"rope_theta": -1e4}, "rope_theta is -10000.0; allowed: above 0, and finite"),
        ({"rope_theta": "1e4"}, "rope_theta is '1e4'; allowed: above 0, and finite"),
        ({"norm_eps": 3}, "norm_eps is 3; allowed: 0 or more, up to 0.1"),
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
        ({"weight_scale": -2.5}, "weight_scale is -2.5; allowed: above 0, and finite"),
        ({"weight_scale": math.inf}, "weight_scale is inf; allowed: above 0, and finite"),
        ({"expert_width": 1.5}, "expert_width is 1.5; allowed: 1 to 16777216"),
        ({"shared_width": -1}, "shared_width is -1; allowed: 0 to 16777216"),
        ({"router": "hash"}, "router is 'hash'; allowed: 'softmax', 'sigmoid'"),
    ],
)
def test_expert_settings(settings, message):
    shape = dict(n_experts=8, experts_per_token=2, expert_width=4)
    with pytest.raises(ValueError, match=message):
        MoEConfig(**{**shape, **settings})


def test_replace_checks_again():
    assert ModelConfig(**SHAPE).replace(width=16).width == 16
    with pytest.raises(ValueError, match="width is 0"):
        ModelConfig(**SHAPE).replace(width=0)
