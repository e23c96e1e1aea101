"""The drafter's folder: released names, and files and targets that are refused."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from llada_jax.checkpoint import load_params
from llada_jax.draft.files import (
    drafter_from_hf,
    drafter_to_hf,
    read_drafter,
    require_target,
    write_drafter,
)
from llada_jax.draft.network import drafter_specs, init_drafter

GOLDEN = Path(__file__).parent.parent / "goldens" / "dflash"
HF = json.loads((GOLDEN / "drafter" / "config.json").read_text())
QWEN3_4B = {
    "architectures": ["DFlashDraftModel"], "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "model_type": "qwen3", "block_size": 16, "num_target_layers": 36,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
    "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 5,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6,
    "rope_theta": 1000000, "rope_scaling": None, "max_position_embeddings": 40960,
    "vocab_size": 151936, "tie_word_embeddings": False, "dtype": "bfloat16", "hidden_act": "silu",
    "layer_types": ["full_attention"] * 5, "sliding_window": None, "use_sliding_window": False,
    "max_window_layers": 5, "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "initializer_range": 0.02, "use_cache": True,
}  # fmt: skip


def test_a_released_configuration_has_the_published_number_of_parameters():
    config = drafter_from_hf(QWEN3_4B)
    sizes = [spec.size for spec in jax.tree.leaves(drafter_specs(config))]
    assert (sum(sizes), len(sizes)) == (537_427_200, 58)
    assert drafter_from_hf(drafter_to_hf(config)) == config


def test_the_block_size_may_be_in_either_place_or_both():
    inner = {**HF["dflash_config"], "block_size": 5}
    for hf in ({**HF, "dflash_config": inner}, {**HF, "block_size": None, "dflash_config": inner}):
        assert drafter_from_hf(hf).block_length == 5


def test_taps_have_the_published_default():
    hf = {**HF, "dflash_config": {"mask_token_id": 94}}
    assert drafter_from_hf(hf).taps == (1, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dflash_config": {**HF["dflash_config"], "block_size": 8}}, r"block_size is \[5, 8\]"),
        ({"block_size": None}, r"block_size is \[\] .*; allowed: one number"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "layer_types is .*; allowed:"),
        ({"use_sliding_window": True, "sliding_window": 4096}, "sliding_window"),
        ({"conv_kernel_size": 2}, "conv_kernel_size"),
        ({"dflash_config": {**HF["dflash_config"], "causal": True}}, "dflash_config has {'causal'"),
        ({"dflash_config": {"target_layer_ids": [1]}}, "dflash_config lacks 'mask_token_id'"),
        ({"architectures": ["DFlash2DraftModel"]}, r"architectures is \['DFlash2DraftModel'\]"),
    ],
)
def test_other_variants_are_refused(changes, message):
    with pytest.raises(ValueError, match=message) as error:
        drafter_from_hf({**HF, **changes})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("n_ids", [None, 7])
def test_a_written_drafter_is_read_again(tmp_path, n_ids):
    config = replace(read_drafter(GOLDEN / "drafter")[0], target="ab12", n_ids=n_ids)
    ids = None if n_ids is None else jnp.array([2, 3, 5, 8, 13, 21, 95], jnp.int32)
    params = init_drafter(config, jax.random.key(1))._replace(ids=ids)
    write_drafter(tmp_path / "written", config, params, "float32")
    read_config, read = read_drafter(tmp_path / "written")
    assert read_config == config
    jax.tree.map(np.testing.assert_array_equal, read, params)
    names = set(load_file(tmp_path / "written" / "model.safetensors")) - {"d2t"}
    assert names == set(load_file(GOLDEN / "drafter" / "model.safetensors"))
    with pytest.raises(ValueError, match="n_ids is 9; allowed"):
        write_drafter(tmp_path / "not", replace(config, n_ids=9), params)
    assert not (tmp_path / "not").exists()


def test_matrices_in_8_bits_stay_so(tmp_path):
    config, params = read_drafter(GOLDEN / "drafter")
    write_drafter(tmp_path / "written", config, params, "int8")
    read = read_drafter(tmp_path / "written")[1]
    assert read.fc.values.dtype == jnp.int8 and read.norm.dtype == jnp.float32
    floats = read_drafter(tmp_path / "written", "float32")[1]
    for ours, plain in zip(jax.tree.leaves(floats), jax.tree.leaves(params), strict=True):
        assert abs(np.float32(ours - plain)).max() <= abs(np.float32(plain)).max() / 254 + 1e-7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("fc.weight"), "lacks fc.weight"),
        (lambda t: t.update({"fc.weight": t["fc.weight"].astype(np.int8)}),
         "lacks fc.weight_scale"),
        (lambda t: t.update(lm_head=t["norm.weight"]), "also has lm_head"),
        (lambda t: t.update({"fc.weight": t["fc.weight"][:, 1:].copy()}),
         r"fc.weight of .* \[32, 63\]; allowed: .* \[32, 64\]"),
        (lambda t: t.update({"norm.weight": t["norm.weight"] * np.float32("nan")}), "NaN"),
    ],
)  # fmt: skip
def test_damaged_weights_are_refused(tmp_path, change, message):
    tensors = load_file(GOLDEN / "drafter" / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(HF))
    with pytest.raises(ValueError, match=message):
        read_drafter(tmp_path)


def test_another_target_is_refused():
    target = load_params(GOLDEN / "target", "float32")[0]
    config = replace(read_drafter(GOLDEN / "drafter")[0], target="ab12")
    require_target(config, target, "ab12")
    require_target(replace(config, target=None), target, "any")
    for other, fingerprint, message in (
        (target, "cd34", "fingerprint of the model is 'cd34'; allowed: 'ab12'"),
        (target.replace(vocab_size=97), "ab12", "vocab_size of the model is 97; allowed: 96"),
        (target.replace(width=64), "ab12", "width of the model is 64; allowed: 32"),
        (target.replace(n_layers=5), "ab12", "n_layers of the model is 5; allowed: 6"),
        (target.replace(causal=None, mask_id=3), "ab12", "not autoregressive"),
    ):
        with pytest.raises(ValueError, match=message):
            require_target(config, other, fingerprint)
