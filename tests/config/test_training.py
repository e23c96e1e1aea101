"""`TrainConfig` names the bad value and the allowed ones."""

import pytest

from llada_jax.config import TrainConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps is 0; allowed: 1 or more"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"optimizer": "sgd"}, "optimizer is 'sgd'; allowed: 'adamw', 'muon'"),
        ({"objective": "rl"}, "objective is 'rl'; allowed: 'finetune', 'pretrain'"),
        ({"peak_lr": 0.0}, "peak_lr is 0.0; allowed: above 0"),
        ({"peak_lr": float("inf")}, "peak_lr is inf; allowed: above 0, and finite"),
        ({"seed": 2**63}, "seed is 9223372036854775808; allowed: a whole number"),
        ({"seed": 1.5}, "seed is 1.5; allowed: 0 or more"),
        ({"clip_norm": -1.0}, "clip_norm is -1.0"),
        ({"seed": -1}, "seed is -1; allowed: 0 or more"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
        ({"warmup_steps": 80}, "warmup_steps \\+ decay_steps is 110; allowed: up to steps"),
        ({"max_gen_length": 100}, "max_gen_length is 100; allowed: a multiple of block_length"),
        ({"block_share": 1.5}, "block_share is 1.5; allowed: 0 or more, up to 1"),
        ({"cut_share": -0.5}, "cut_share is -0.5"),
        ({"min_mask_probability": 0.0}, "min_mask_probability is 0.0; allowed: between 0 and 1"),
        ({"checkpoint_every": 70}, "checkpoint_every is 70; allowed: a multiple of log_every"),
        ({"evaluate_every": 70}, "evaluate_every is 70; allowed: a multiple of log_every"),
        ({"log_every": 0}, "log_every is 0; allowed: 1 or more"),
    ],
)
def test_bad_values_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**{"steps": 100, "warmup_steps": 10, "decay_steps": 30, **changes})


def test_it_is_hashable_and_replaceable():
    config = TrainConfig(steps=2000)
    assert hash(config) == hash(config.replace(seed=0))
    assert config.replace(seed=5).seed == 5
