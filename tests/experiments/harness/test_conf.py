"""Every file in conf/ composes to a valid configuration."""

import pytest
from hydra import compose, initialize_config_dir

from experiments import reliability
from experiments.evaluate import __main__ as evaluate
from experiments.generate import __main__ as generate
from experiments.harness.run import REPOSITORY, read_config
from experiments.lm_eval.__main__ import LmEvalConfig
from experiments.train import __main__ as train
from llada_jax.config import ModelConfig
from llada_jax.evaluation.tasks import task_names, word_problems
from llada_jax.model.architecture import ARCHITECTURES
from llada_jax.sampler.config import PRESETS, SamplerConfig

CONF = REPOSITORY / "conf"
SCHEMAS = {
    "evaluate": evaluate.EvaluateConfig,
    "generate": generate.GenerateConfig,
    "lm_eval": LmEvalConfig,
    "reliability": reliability.ReliabilityConfig,
    "train": train.RunConfig,
}


def composed(entry: str, *overrides: str):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return read_config(SCHEMAS[entry], compose(entry, overrides=list(overrides)))


def test_the_mixture_of_experts_to_train_composes():
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = read_config(train.RunConfig, compose("train_moe"))
    assert config.model.moe is not None and config.model.moe.n_experts == 8
    assert {share.name for share in config.data.tasks} == {"yes_no", "choices"}
    assert config.train.balance_weight > 0


@pytest.mark.parametrize("entry", SCHEMAS)
def test_every_entry_point_composes(entry):
    assert isinstance(composed(entry), SCHEMAS[entry])


@pytest.mark.parametrize("architecture", sorted(path.stem for path in ARCHITECTURES.glob("*.yaml")))
def test_every_architecture_composes(architecture):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=[f"architecture@model={architecture}"])
    assert read_config(ModelConfig, config.model).n_layers > 0


def test_the_demos_sampler_stops_with_the_answer():
    assert composed("generate").sampler.config == SamplerConfig.preset("blockwise")
    assert composed("generate").sampler.config.eos_early_stop


REPORTED = {
    "llada": SamplerConfig.preset("llada", eos_early_stop=True),
    "blockwise": SamplerConfig.from_flat(cache="blockwise", eos_early_stop=True),
    "fast_dllm_prefix": SamplerConfig.preset("fast_dllm", cache="prefix", eos_early_stop=True),
    "fast_dllm_dual": SamplerConfig.preset("fast_dllm", eos_early_stop=True),
    "multi_block": SamplerConfig.preset("multi_block"),
    "staged": SamplerConfig.preset("staged"),
    "llada_cpp": SamplerConfig.preset("llada_cpp"),
    "wino": SamplerConfig.preset("wino"),
    "token_edit": SamplerConfig.preset("token_edit"),
}
"""Decoders that other parts look up by name."""


def test_the_suite_has_the_decoders_that_are_reported_on_every_task():
    suite = composed("evaluate", "suite=decoding").suite
    shipped = {decoder.name: decoder.sampler for decoder in suite.decoders}
    committing_for_good = SamplerConfig.preset("blockwise")
    lean = SamplerConfig.preset("staged").replace(
        theta_visible=0.8, on_change="remask", refresh="none", end_steps=1
    )
    assert shipped == REPORTED | {"blockwise_threshold": committing_for_good, "lean": lean}
    assert suite.name == "decoding" and suite.decoders[0].name == "llada"
    assert set(suite.tasks) == set(task_names()) - {"inventory"}, "a token a forward takes long"


@pytest.mark.parametrize("sampler", PRESETS)
def test_every_preset_is_a_sampler(sampler):
    assert composed("generate", f"sampler={sampler}").sampler.config == SamplerConfig.preset(
        sampler
    )


def test_the_default_sampler_is_the_default_of_the_dataclass():
    assert composed("generate", "sampler=default").sampler.config == SamplerConfig()


def test_the_demo_is_a_problem_that_no_model_was_trained_on():
    config = composed("generate")
    assert config.prompt == word_problems.TASK.item(0, 3, "test", difficulty=0).question


def test_settings_that_a_preset_does_not_name_can_be_overridden():
    config = composed("generate", "sampler.cache=dual", "sampler.threshold=1", "seed=3")
    assert config.sampler.config == SamplerConfig.preset("blockwise", cache="dual", threshold=1.0)
    assert config.seed == 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "+sampler.treshold=0.9",
            r"^sampler\.treshold is no setting; allowed: gen_length, block_l",
        ),
        (
            "+promt=hello",
            r"^promt is no setting; allowed: model, dtype, family, ignore_keys",
        ),
        ("sampler.gen_length=100", r"^sampler: gen_length is 100; allowed: a multiple"),
        ("sampler.threshold=high", r"^sampler\.threshold is 'high'; allowed: a number$"),
        ("sampler.cache=all", r"^sampler\.cache is 'all'; allowed: 'none', 'prefix'"),
        ("loop=fast", r"^loop is 'fast'; allowed: 'host', 'compiled', 'both'$"),
        ("prompt=", r"^prompt is ''; allowed: some text$"),
        ("pause=-1", r"^pause is -1\.0; allowed: 0 or more$"),
    ],
)
def test_errors_name_the_setting_and_what_is_allowed(override, message):
    with pytest.raises(ValueError, match=message):
        composed("generate", override)
