"""A checkpoint's family follows from its architectures, its model_type and its keys together."""

import jax.numpy as jnp
import numpy as np
import pytest

import llada_jax as lj
from llada_jax.checkpoint.config_json import config_from_hf, config_to_hf
from llada_jax.model.families.family import families, family_of
from llada_jax.model.layers import rotation
from llada_jax.sampler.config import PRESETS, SamplerConfig
from tests.checkpoint.folders import GOLDENS as FOLDER
from tests.checkpoint.folders import golden_config

GOLDENS = {
    "llada-mha": "llada",
    "llada-moe": "llada_moe",
    "llada-moe-released": "llada_moe",
    "llada2-moe": "llada2",
    "dream": "dream",
    "dream-reasoner": "dream_reasoner",
    "sdar-b4": "sdar",
    "sdar-moe-b4": "sdar_moe",
    "rnd1": "rnd1",
    "fast-dllm-v2": "fast_dllm_v2",
    "stable-diffcoder": "stable_diffcoder",
    "a2d-qwen2-mdlm": "a2d_qwen2",
    "a2d-qwen3-mdlm": "a2d_qwen3",
    "nemotron": "nemotron",
    "wedlm": "wedlm",
    "wedlm-bias": "wedlm",
    "ar-llama": "llama",
    "ar-llama3": "llama",
    "ar-qwen2": "qwen2",
    "ar-qwen3": "qwen3",
}


@pytest.mark.parametrize(("golden", "family"), GOLDENS.items())
def test_released_configurations_are_recognised(golden, family):
    assert family_of(golden_config(golden)) == family


def test_the_goldens_are_of_every_family():
    assert {*GOLDENS.values(), "open_dcoder"} == {*families()}  # that one is told, not recognised


ONE = jnp.arange(2)[None]
YARN = golden_config("nemotron")["rope_parameters"]
LOOK_ALIKES = {
    "LLaDA2.2": ("llada2-moe", {"expert_capacity": 48}, "choose its experts together"),
    "I-DLM": ("sdar-b4", {"eos_token_id": 151645}, "strictly causal, and its outputs are shifted"),
    "I-DLM b3": ("sdar-b4", {"block_size": 3}, "I-DLM is strictly causal"),
    "Open-dCoder": ("ar-qwen2", {"mask_token_id": 3}, "it is family='dream'"),
    "Llama": (
        "stable-diffcoder",
        {"architectures": ["LlamaForCausalLM"], "mask_token_id": 5},
        "a diffusion model in the names of an autoregressive one",
    ),
    "Qwen3-MoE": ("ar-qwen3", {"architectures": ["Qwen3MoeForCausalLM"]}, "the dense ones"),
    "Nemotron": (
        "nemotron",
        {"model_type": "nemotron_labs_diffusion_vlm"},
        "an encoder of their own",
    ),
    "DiffusionGemma": ("dream", {"model_type": "diffusion_gemma"}, "has no mask token"),
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_a_look_alike_is_refused_with_the_reason(name):
    golden, changes, why = LOOK_ALIKES[name]
    with pytest.raises(ValueError, match=f"this is .*{why}.*; allowed families: llada, "):
        config_from_hf({**golden_config(golden), **changes})


def test_the_caller_may_name_the_family():
    hf = {**golden_config("sdar-b4"), "eos_token_id": 151645, "vocab_size": 151936}
    assert config_from_hf(hf, family_name="sdar").eos_id == 151645


@pytest.mark.parametrize(
    ("golden", "changes", "message"),
    [
        ("dream", {"architectures": ["DreamOn"]},
         "architectures is 'DreamOn' for 'Dream'; allowed: 'DreamModel', 'DreamForCausalLM'"),
        ("dream", {"architectures": None}, "architectures is None for 'Dream'"),
        ("llada-mha", {"new_attention": "sparse"},
         r"has {'new_attention': 'sparse'}, which nothing here reads.*ignore_keys=\['new_att"),
        ("llada-mha", {"quantization_config": {"quant_method": "fp8"}},
         "quantization_config is of 'fp8'"),
        ("llada2-moe", {"expert_capacity": 48, "model_type": "llada2"},
         "'expert_capacity': 48}, which decides what is computed"),
        ("dream", {"num_experts": 8}, "num_experts"),
        ("dream", {"sliding_window": 64, "use_sliding_window": None}, "sliding_window"),
        ("dream", {"layer_types": ["sliding_attention"]}, "allowed: 'full_attention' alone"),
        ("llada-moe", {"moe_router_score_function": "sigmoid"}, "allowed: 'softmax'"),
        ("llada-moe", {"router_num_group": 4}, "router_num_group is 4; allowed: -2"),
        ("llada2-moe", {"rotary_dim": 16}, "rotary_dim is 16; allowed: 8"),
        ("sdar-moe-b4", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2; allowed: 1"),
        ("sdar-b4", {"block_size": None}, "lacks 'block_size'"),
        ("sdar-b4", {"block_size": 0}, "block_length is 0; allowed: 1 or more"),
        ("sdar-b4", {"eos_token_id": [318, "x"]}, "allowed: whole numbers"),
        ("sdar-b4", {"eos_token_id": [[318]]}, "allowed: whole numbers"),
        ("sdar-b4", {"architectures": "SDARForCausalLM"}, "allowed: a list of names"),
        ("dream", {"layer_types": [{}]}, "allowed: 'full_attention' alone"),
        ("dream", {"rope_parameters": [1]}, "rope_parameters is .*; allowed: an object"),
        ("dream", {"rope_parameters": {"rope_type": "longrope"}}, "allowed: 'default', 'yarn'"),
        ("ar-llama3", {"rope_parameters": {"rope_type": "llama3", "low_freq_factor": 2}},
         "low_freq_factor of llama3 is 2; allowed: 1"),
        ("ar-qwen3", {"is_causal": False}, "is_causal is False; allowed: True"),
        ("ar-llama", {"attention_bias": True}, "attention_bias is True; allowed: False"),
        ("ar-qwen2", {"use_sliding_window": True}, "use_sliding_window is True; allowed: False"),
        ("dream", {"rope_parameters": {"rope_type": "yarn"}}, "beta_fast of yarn is None"),
        ("nemotron", {"rope_parameters": {**YARN, "mscale": 0.7}}, "mscale of yarn is 0.7"),
        ("nemotron", {"rope_parameters": {**YARN, "factor": None}}, "factor is None; allowed"),
        ("nemotron", {"rope_parameters": {**YARN, "factor": 0}}, "rope_factor is 0; allowed: ab"),
        ("nemotron", {"dlm_type": "dream"}, "dlm_type is 'dream'; allowed: 'llada'"),
        ("wedlm", {"attention_bias": "yes"}, "attention_bias is 'yes'; allowed: true or false"),
        ("a2d-qwen3-mdlm", {"attention_bias": True}, "attention_bias is True; allowed: False"),
        ("nemotron", {"block_size": 16}, "block_size is 16; allowed: 32"),
    ],
)  # fmt: skip
def test_keys_that_change_the_computation_are_refused(golden, changes, message):
    with pytest.raises(ValueError, match=message):
        config_from_hf({**golden_config(golden), **changes})


def test_the_kind_of_experts_decides_if_no_class_is_named():
    without = {**golden_config("llada-moe-released"), "architectures": None}
    assert family_of(without) == "llada_moe"
    assert family_of({**golden_config("llada-mha"), "architectures": None}) == "llada"


def test_stop_lists_come_from_the_generation_file():
    hf = golden_config("sdar-b4")
    assert config_from_hf(hf).stop_ids == ()
    found = config_from_hf(hf, generation={"eos_token_id": [318, 317]})
    assert (found.eos_id, found.stop_ids) == (317, (318,))
    listed = config_from_hf({**hf, "eos_token_id": [317, 318]})
    assert (listed.eos_id, listed.stop_ids) == (317, (318,))


@pytest.mark.parametrize("family", families())
def test_a_familys_presets_are_presets_that_fit_it(family):
    presets = families()[family].presets
    assert presets and {*presets} <= {*PRESETS}
    for name in presets:
        SamplerConfig.preset(name)


def test_a_block_that_no_file_names_is_an_argument():
    folder = FOLDER / "a2d-qwen3-mdlm"
    assert lj.load(folder, block_length=32).config.block_length == 32
    with pytest.raises(ValueError, match="block_length is 8; allowed: 4, the checkpoint's own"):
        lj.load(FOLDER / "sdar-b4", block_length=8)
    assert lj.load(FOLDER / "stable-diffcoder").config.block_length == 4
    assert lj.load(FOLDER / "stable-diffcoder", block_length=8).config.block_length == 8


GENERIC = {
    "_attn_implementation_autoset": True, "_commit_hash": "1f0b7c1", "add_cross_attention": True,
    "chunk_size_feed_forward": 1, "do_sample": True, "flash_attn_varlen": True,
    "gradient_checkpointing": True, "id2label": {"0": "A"}, "is_causal": True, "loss_type": "X",
    "max_length": 20, "max_new_tokens": 7, "num_labels": 2, "output_scores": True,
    "temperature": 0.7, "top_p": 0.9, "transformers_weights": "x", "unsloth_version": "2026.1",
    "use_fused_kernels": True, "use_liger_kernel": True, "use_flash_attention_2": True,
    "deepspeed_config": {"zero": 3}, "fsdp": "full_shard", "learning_rate": 1e-5, "bf16": True,
    "padding_side": "left", "base_model_tp_plan": {"a": "b"}, "logits_to_keep": 1, "seed": 42,
    "kv_cache_dtype": "fp8", "resid_pdrop": 0.1, "mask_token": "<mask>", "sub_configs": {"a": 1},
    "vendors_switch": False, "vendors_list": [], "vendors_share": 0.0, "vendors_name": "",
}  # fmt: skip


@pytest.mark.parametrize("golden", ["llada-mha", "dream", "llada2-moe", "nemotron"])
def test_generic_keys_and_empty_values_change_nothing(golden):
    hf = golden_config(golden)
    assert config_from_hf(GENERIC | hf) == config_from_hf(hf)


def test_a_training_recipes_key_is_inert():
    hf = golden_config("nemotron")
    assert config_from_hf({**hf, "dlm_paradigm": "block_diff"}) == config_from_hf(hf)


def test_unknown_keys_are_ignored_if_the_caller_says_so():
    hf = golden_config("llada-mha")
    odd = {**hf, "new_attention": "sparse", "other": 3}
    assert config_from_hf(odd, ignore_keys=("new_attention", "other")) == config_from_hf(hf)
    with pytest.raises(ValueError, match=r"has {'other': 3}, which nothing .*ignore_keys=\['other"):
        config_from_hf(odd, ignore_keys=["new_attention"])


@pytest.mark.parametrize(
    ("golden", "changes", "ignored", "message"),
    [
        ("dream", {}, ["rope_scaling"], r"\['rope_scaling'\] are understood; allowed: a list"),
        ("dream", {"odd": 1}, "odd", "ignore_keys is .*; allowed: a list of keys"),
        ("dream", {"num_experts": 8}, ["num_experts"], "which decides what is computed"),
        ("llada2-moe", {"expert_capacity": 48}, ["expert_capacity"], "this is LLaDA2.2, which is"),
        ("llada-mha", {"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping"], "decides what"),
    ],
)  # fmt: skip
def test_the_caller_cannot_ignore_keys_that_change_the_computation(
    golden, changes, ignored, message
):
    with pytest.raises(ValueError, match=message):
        config_from_hf({**golden_config(golden), **changes}, ignore_keys=ignored)


OTHERS = {
    "MMaDA": {"model_type": "mmada", "architectures": ["MMadaModelLM"]},
    "Dream-VL": {"model_type": "dream-vl", "architectures": ["DreamVLModel"]},
    "LLaDA-V": {"model_type": "llava_llada", "architectures": ["LlavaLLaDAModelLM"]},
    "ReFusion": {"auto_map": {"AutoModelForCausalLM": "modeling_refusion.RefusionModel"}},
    "DiffuLLaMA": {"model_type": "llama", "architectures": ["DiscreteDiffusionModel"]},
    "ModernBERT": {"model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"]},
    "BD3-LM": {"model_type": "bd3lm", "architectures": ["BD3LM"]},
    "MDLM": {"model_type": "mdlm", "architectures": ["MDLM"]},
    "a multimodal model": {"mm_vision_tower": "siglip"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_are_refused_with_the_reason(name):
    with pytest.raises(ValueError, match=f"^this is {name}, which is not supported because ") as it:
        family_of({**golden_config("llada-mha"), **OTHERS[name]})
    assert str(it.value).count("llada_moe") == 1


def test_a_context_shorter_than_the_original_rope_context():
    """Nemotron's base models: 4,096 positions of a RoPE for 16,384."""
    rope = {**YARN, "factor": 0.25, "original_max_position_embeddings": 16384}
    hf = {**golden_config("nemotron"), "rope_parameters": rope, "max_position_embeddings": 4096}
    config = config_from_hf(hf)
    assert (config.rope_factor, config.max_length) == (0.25, 4096)
    assert config_from_hf(config_to_hf(config)).max_length == 4096
    # By transformers 5.0.0, `ROPE_INIT_FUNCTIONS["yarn"]` of a Ministral3Config.
    config = config.replace(rope_theta=1e6, head_dim=32, rotary_dims=32)
    cos, sin = (part[0, 1, 0] for part in rotation(config, ONE))
    expected = [1.0, 0.4217, 0.17783, 0.074989, 0.031623, 0.013335, 0.0089975, 0.005217]
    expected += [0.0028, 0.0014338, 7.1131e-4, 2.9996e-4, 1.2649e-4, 5.3341e-5, 2.2494e-5]
    expected += [9.4855e-6]
    np.testing.assert_allclose(np.arctan2(sin, cos), expected, rtol=1e-4)


LLAMA_KEYS = {"hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12288,
              "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
              "max_position_embeddings": 16384, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
              "vocab_size": 126464}  # fmt: skip
RELEASED = {
    "Dream-v0-Instruct-7B": (
        {"model_type": "Dream", "architectures": ["DreamModel"], "hidden_size": 3584,
         "intermediate_size": 18944, "num_attention_heads": 28, "num_hidden_layers": 28,
         "num_key_value_heads": 4, "vocab_size": 152064, "rope_theta": 1e6, "rope_scaling": None,
         "max_window_layers": 28, "sliding_window": None, "use_mrope": False,
         "use_sliding_window": False, "mask_token_id": 151666, "attn_implementation": "x"},
        {"family": "dream", "mask_id": 151666, "head_dim": 128, "max_length": 4096},
    ),
    "LLaDA of an RL framework": (
        {**golden_config("llada-mha"), "flash_attention": True, "flash_attn_varlen": True},
        {"family": "llada", "mask_id": 319},
    ),
    "LLaDA in Llama's keys": (
        {**LLAMA_KEYS, "model_type": "llada", "architectures": ["LLaDAModelLM"],
         "attention_bias": False, "initializer_range": 0.02, "pretraining_tp": 1,
         "tie_word_embeddings": False, "eos_token_id": 126081},
        {"family": "llada", "mask_id": 126336, "max_length": 16384, "eos_id": 126081},
    ),
    "SDAR-4B-Chat": (
        {**golden_config("sdar-b4"), "debug": False, "ep_size": 1, "fuse_cross_entropy": True,
         "micro_forward": False, "skip_checkpoint": False, "use_deepep": False},
        {"family": "sdar", "block_length": 4},
    ),
    "Llama 3.1": (
        {**LLAMA_KEYS, "model_type": "llama", "architectures": ["LlamaForCausalLM"],
         "attention_bias": False, "eos_token_id": [128001, 128008, 128009], "vocab_size": 128256,
         "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                          "original_max_position_embeddings": 8192, "rope_type": "llama3"}},
        {"family": "llama", "mask_id": None, "stop_ids": (128008, 128009), "rope_factor": 8.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RELEASED)
def test_configurations_with_the_keys_of_releases(name):
    hf, expected = RELEASED[name]
    config = config_from_hf(hf)
    assert {key: getattr(config, key) for key in expected} == expected
