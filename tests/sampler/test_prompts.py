"""Bad input: one clear error each, before anything is computed."""

import jax
import numpy as np
import pytest

from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.prompts import sequence_keys, with_ids
from tests.sampler.toy import CONFIG, MASK, toy_decode

SMALL = SamplerConfig.from_flat(gen_length=8, block_length=4, steps=4)


def never(*_):
    raise AssertionError("computed before the input was checked")


@pytest.fixture(autouse=True)
def no_computation(monkeypatch):
    for name in ("compiled_loop", "host_loop"):
        monkeypatch.setattr(f"llada_jax.sampler.generate.{name}", never)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "no prompts were given; allowed: 1 or more"),
        ([[]], "prompt 0 is empty; allowed: 1 token or more"),
        ([[1], []], "prompt 1 is empty"),
        ([[1, 24]], r"prompt 0 has id \[24\]; allowed: 0 to 23"),
        ([[1, -1]], r"prompt 0 has id \[-1\]; allowed: 0 to 23"),
        ([[1, MASK]], r"prompt 0 contains \[MASK\] \(23\) at position \[1\]; allowed: only in inf"),
        ([[0.5]], "prompt 0 has dtype float64; allowed: integers"),
        ([1, 2], "prompts have 1 dimensions; allowed: 2"),
        (None, "prompts is None; allowed: lists of ids"),
        ("2+2", "prompts is '2\\+2'; allowed: lists of ids \\(text is tokenized first"),
        (["2+2"], r"prompts is \['2\+2'\]; allowed: lists of ids \(text is tokenized first"),
        ([list(range(10)) * 9], "prompt 0 has 90 tokens; allowed: up to 88"),
    ],
)
def test_bad_prompts(prompts, message):
    with pytest.raises(ValueError, match=message):
        toy_decode(prompts, SMALL)


def test_a_generation_longer_than_the_model_is_named():
    with pytest.raises(ValueError, match="gen_length is 96; allowed: up to 95"):
        toy_decode([[1, 2]], SMALL.replace(gen_length=96, steps=96))


def test_settings_must_be_a_sampler_config():
    with pytest.raises(
        ValueError, match=r"config is \{'gen_length': 8\}; allowed: a SamplerConfig"
    ):
        with_ids({"gen_length": 8}, CONFIG)


def test_infilling_may_use_the_whole_length_but_not_more():
    with pytest.raises(ValueError, match="prompt 0 has 97 tokens; allowed: up to 96"):
        toy_decode([[1] * 97], SMALL, infill=True)


def test_infilling_needs_a_hole():
    with pytest.raises(ValueError, match=r"no canvas has a hole; allowed: 1 or more \[MASK\]"):
        toy_decode([[1, 2], [3]], SMALL, infill=True)


def test_numpy_batches_are_prompts():
    with pytest.raises(ValueError, match=r"prompt 1 has id \[99\]"):
        toy_decode(np.array([[1, 2], [3, 99]]), SMALL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loop": "scan"}, "loop is 'scan'; allowed: 'compiled', 'host'"),
        ({"on_step": print, "loop": "compiled"}, "on_step needs loop='host'"),
        ({"seed": [1, 2]}, "2 seeds were given; allowed: one, or 1"),
        ({"seed": 2**63}, "seed is 9223372036854775808; allowed: a whole number from"),
        ({"seed": "1"}, "seed is '1'; allowed: a whole number"),
        ({"seed": 1.5}, "seed is 1.5; allowed: a whole number"),
        ({"seed": [1.5]}, "a seed is 1.5; allowed: a whole number"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        toy_decode([[1, 2]], SMALL, **options)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mask_id", {}),
        ("eos_id", {"logits_eos_inf": True}),
        ("eos_id", {"eos_early_stop": True}),
        ("eot_id", {"confidence_eos_eot_inf": True}),
    ],
)
def test_missing_special_ids_are_named(name, settings):
    model = CONFIG.replace(**{name: None})
    with pytest.raises(ValueError, match=f"{name} is not set by the model's configuration"):
        toy_decode([[1, 2]], SMALL.replace(**settings), model)
    with pytest.raises(AssertionError, match="computed"):
        toy_decode([[1, 2]], SMALL.replace(**settings, **{name: 7}), model)


def test_ids_outside_the_vocabulary():
    with pytest.raises(ValueError, match="mask_id is 24; allowed: 0 to 23"):
        toy_decode([[1, 2]], SMALL.replace(mask_id=24))


@pytest.mark.parametrize("seed", [0, -1, 2**40 + 7, -(2**63)])
def test_keys_of_a_batch_are_those_of_its_sequences(seed):
    one_by_one = [jax.random.fold_in(jax.random.key(seed), row) for row in (0, 3)]
    together = sequence_keys([(seed, 0), (seed, 3)])
    np.testing.assert_array_equal(
        jax.random.key_data(together), [jax.random.key_data(key) for key in one_by_one]
    )
