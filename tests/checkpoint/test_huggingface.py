"""Folders in the Hugging Face layout: loading, writing, and refused folders."""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import load_file

from llada_jax.checkpoint import huggingface, load_params, save_huggingface
from llada_jax.checkpoint.config_json import config_from_hf, config_to_hf
from llada_jax.model.families.family import families
from llada_jax.model.params import Experts
from llada_jax.model.quantize import QuantArray, dequantize
from tests.checkpoint.folders import (
    FAMILIES,
    GOLDENS,
    NEW_FAMILIES,
    TOLERANCE,
    golden_config,
    golden_forward,
    golden_tensors,
    loaded,
    logits,
    same_bits,
    write_folder,
    write_shards,
)
from tests.checkpoint.numpy_model import numpy_logits, random_tensors
from tests.drawn_params import drawn_params

LLADA_TO_HF_KEYS = {
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "mlp_hidden_size": "intermediate_size",
    "max_sequence_length": "max_position_embeddings",
    "weight_tying": "tie_word_embeddings",
    "embedding_size": "vocab_size",
}
# Measured root mean square of the logits' error, relative to their spread, on the goldens (random
# weights, width 64): bfloat16 0.026 to 0.047, int8 0.059 to 0.086 on the dense families. If a
# router chooses another expert, logits change by their size, so MoE families are not close.
BFLOAT16_ERROR = 0.07
INT8_ERROR = 0.12


def tiny_qwen(model_type: str, *, tied: bool) -> dict[str, Any]:
    return {
        "model_type": f"a2d-{model_type}",
        "hidden_act": "silu",
        "vocab_size": 96,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8 if model_type == "qwen2" else 16,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 64,
        "tie_word_embeddings": tied,
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_shards_load_as_a_single_file_does(family: str, tmp_path: Path) -> None:
    folder = write_shards(tmp_path, golden_config(family), golden_tensors(family), 3)
    config, params = loaded(folder)
    expected_config, expected = loaded(GOLDENS / family)
    assert config == expected_config
    assert same_bits(params, expected)


def test_llada_configuration_in_the_names_of_hugging_face(tmp_path: Path) -> None:
    hf = {LLADA_TO_HF_KEYS.get(k, k): v for k, v in golden_config("llada-gqa").items()}
    assert "d_model" not in hf
    folder = write_folder(tmp_path, hf, golden_tensors("llada-gqa"))
    config, params = loaded(folder)
    expected_config, expected = loaded(GOLDENS / "llada-gqa")
    assert config == expected_config
    assert same_bits(params, expected)


def test_rope_keys_of_transformers_5() -> None:
    hf = golden_config("dream")
    moved = {**hf, "rope_parameters": {"rope_type": "default", "rope_theta": hf["rope_theta"]}}
    del moved["rope_theta"]
    assert config_from_hf(moved) == config_from_hf(hf)
    with pytest.raises(ValueError, match=r"rope_type is 'linear'; allowed: 'default', 'yarn', 'll"):
        config_from_hf({**hf, "rope_parameters": {"rope_type": "linear"}})


def test_rope_scaling_of_transformers_4() -> None:
    hf = golden_config("ar-llama3")
    scaling = hf.pop("rope_parameters")
    moved = {**hf, "rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    assert config_from_hf(moved) == config_from_hf(golden_config("ar-llama3"))
    scaling["type"] = scaling.pop("rope_type")
    assert config_from_hf(moved) == config_from_hf(golden_config("ar-llama3"))


@pytest.mark.parametrize("name", ["nemotron", "wedlm", "wedlm-bias"])
def test_configurations_of_causal_families_are_written_as_they_were_read(name: str) -> None:
    config = config_from_hf(golden_config(name))
    assert config_from_hf(config_to_hf(config)) == config


def test_tensors_decide_on_qk_norm_if_the_configuration_does_not(tmp_path: Path) -> None:
    hf = golden_config("llada2-moe")
    tensors = golden_tensors("llada2-moe")
    del hf["use_qk_norm"]
    assert loaded(write_folder(tmp_path, hf, tensors))[0].qk_norm
    bare = {name: tensor for name, tensor in tensors.items() if "y_layernorm" not in name}
    config, params = loaded(write_folder(tmp_path, hf, bare))
    assert not config.qk_norm
    assert params.layers[0].attention.query_norm is None


def test_a_configuration_that_names_qk_norm_needs_its_tensors(tmp_path: Path) -> None:
    tensors = golden_tensors("llada2-moe")
    bare = {name: tensor for name, tensor in tensors.items() if "y_layernorm" not in name}
    folder = write_folder(tmp_path, golden_config("llada2-moe"), bare)
    with pytest.raises(ValueError, match=r"lacks model\.layers\.0\.attention\.query_layernorm"):
        loaded(folder)


def test_the_numpy_model_agrees_with_pytorch() -> None:
    tokens, expected, _ = golden_forward("dream")
    found = numpy_logits(golden_config("dream"), golden_tensors("dream"), tokens)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_qwen_shapes_agree_with_the_numpy_model(
    model_type: str, tied: bool, tmp_path: Path
) -> None:
    hf = tiny_qwen(model_type, tied=tied)
    tensors = random_tensors(hf, seed=3)
    config, params = loaded(write_folder(tmp_path, hf, tensors))
    assert (params.head is None) == tied
    tokens = np.random.default_rng(4).integers(0, hf["vocab_size"], (2, 17))
    found = logits(config, params, tokens)
    np.testing.assert_allclose(found, numpy_logits(hf, tensors, tokens), rtol=0, atol=TOLERANCE)


def test_tied_llada_reads_no_head(tmp_path: Path) -> None:
    tensors = golden_tensors("llada-mha")
    head = "model.transformer.ff_out.weight"
    untied = {**tensors, head: tensors["model.transformer.wte.weight"]}
    tied = {name: tensor for name, tensor in tensors.items() if name != head}
    hf = golden_config("llada-mha")
    tokens, _, _ = golden_forward("llada-mha")
    expected = logits(*loaded(write_folder(tmp_path / "untied", hf, untied)), tokens)
    folder = write_folder(tmp_path / "tied", {**hf, "weight_tying": True}, tied)
    np.testing.assert_array_equal(logits(*loaded(folder), tokens), expected)


@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16"])
def test_floats_are_cast_as_numpy_casts_them(
    dtype: str | None, stored: Any, tmp_path: Path
) -> None:
    tensors = {k: v.astype(stored) for k, v in golden_tensors("llada-gqa").items()}
    folder = write_folder(tmp_path, golden_config("llada-gqa"), tensors)
    _, params = loaded(folder, dtype)
    expected = tensors["model.transformer.blocks.1.up_proj.weight"]
    if dtype is not None:
        expected = expected.astype(jnp.dtype(dtype))
    found = np.asarray(params.layers[1].ffn.up)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {expected.dtype}
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("family", ["llada-gqa", "dream"])
@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", BFLOAT16_ERROR), ("int8", INT8_ERROR)])
def test_logits_stay_close(family: str, dtype: str, limit: float) -> None:
    tokens, expected, _ = golden_forward(family)
    found = logits(*loaded(GOLDENS / family, dtype), tokens)
    error = np.sqrt(np.mean((found - expected) ** 2)) / expected.std()
    assert error < limit


@pytest.mark.parametrize(("dtype", "limit"), [("int8", 127), ("int4", 7)])
def test_quantized_leaves_represent_the_stored_weights(dtype: str, limit: int) -> None:
    _, params = loaded(GOLDENS / "llada-mha", dtype)
    weight = golden_tensors("llada-mha")["model.transformer.blocks.2.ff_out.weight"]
    leaf = params.layers[2].ffn.down
    assert isinstance(leaf, QuantArray)
    assert leaf.values.dtype.name == dtype
    error = np.abs(np.asarray(dequantize(leaf, jnp.float32)) - weight)
    half_step = np.repeat(leaf.scale, weight.shape[1] // leaf.scale.shape[1], axis=1) / 2
    assert (error <= half_step * 1.001).all()
    np.testing.assert_allclose(np.abs(np.asarray(leaf.values, np.int8)).max(axis=1), limit)
    rest = (params.embedding, params.final_norm, params.layers[0].attention_norm)
    assert all(leaf.dtype == jnp.bfloat16 for leaf in rest)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_quantized_experts_and_fused_rows(dtype: str) -> None:
    tensors = golden_tensors("llada2-moe")
    config, params = loaded(GOLDENS / "llada2-moe", dtype)
    layer = params.layers[2]

    def value(leaf: Any) -> np.ndarray:
        wide = dequantize(leaf, jnp.float32) if isinstance(leaf, QuantArray) else leaf
        return np.asarray(wide, np.float32)

    limit = 0.03
    expert = tensors["model.layers.2.mlp.experts.5.up_proj.weight"]
    np.testing.assert_allclose(value(layer.ffn.up)[5], expert, rtol=0, atol=limit * expert.std())
    fused = tensors["model.layers.2.attention.query_key_value.weight"]
    rows = config.n_heads * config.head_dim
    key = fused[rows : rows + config.n_kv_heads * config.head_dim]
    np.testing.assert_allclose(value(layer.attention.key), key, rtol=0, atol=limit * key.std())


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_the_router_keeps_its_float32(dtype: str) -> None:
    _, params = loaded(GOLDENS / "llada2-moe", dtype)
    stored = golden_tensors("llada2-moe")
    ffn = params.layers[1].ffn
    assert isinstance(ffn, Experts)
    np.testing.assert_array_equal(
        ffn.selection_bias, stored["model.layers.1.mlp.gate.expert_bias"], strict=True
    )
    np.testing.assert_array_equal(ffn.router, stored["model.layers.1.mlp.gate.weight"], strict=True)


def test_pieces_of_a_tensor_make_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [loaded(GOLDENS / "llada2-moe", dtype)[1] for dtype in (None, "int8")]
    monkeypatch.setattr("llada_jax.checkpoint.tensors._PIECE_ELEMENTS", 1000)
    pieces = [loaded(GOLDENS / "llada2-moe", dtype)[1] for dtype in (None, "int8")]
    assert all(same_bits(*pair) for pair in zip(whole, pieces, strict=True))


@pytest.mark.parametrize("family", (*FAMILIES, *NEW_FAMILIES))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saving_inverts_loading(family: str, dtype: Any, tmp_path: Path) -> None:
    config, params = loaded(GOLDENS / family, dtype)
    save_huggingface(tmp_path / "saved", config, params, dtype)
    again, reloaded = loaded(tmp_path / "saved")
    assert again == config
    assert same_bits(reloaded, params)
    assert {file.name for file in tmp_path.iterdir()} == {"saved"}


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_files_match_the_reference(family: str, tmp_path: Path) -> None:
    save_huggingface(tmp_path, *loaded(GOLDENS / family), "float32")
    tensors = golden_tensors(family)
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == tensors.keys()
    assert all((saved[name] == tensors[name]).all() for name in tensors)


def test_saved_configuration_has_the_keys_that_the_reference_reads(tmp_path: Path) -> None:
    reference = golden_config("llada-mha")
    save_huggingface(tmp_path, *loaded(GOLDENS / "llada-mha"), "float32")
    saved = json.loads((tmp_path / "config.json").read_text())
    training_only = {"alibi_bias_max", "init_cutoff_factor", "init_fn", "init_std", "mlp_ratio",
                     "precision", "train_max_sequence_length", "transformers_version"}  # fmt: skip
    assert reference.keys() - saved.keys() == training_only
    assert {key: reference[key] for key in saved if key in reference} == saved


@pytest.mark.parametrize("golden", (*FAMILIES, *NEW_FAMILIES))
def test_every_family_spells_its_configuration(golden: str) -> None:
    config = config_from_hf(golden_config(golden))
    assert config_from_hf(config_to_hf(config)) == config
    assert config_to_hf(config)["model_type"] in families()[config.family].model_types


def test_a_dense_first_layer_in_either_spelling() -> None:
    hf = {**golden_config("llada-moe"), "moe_layer_freq": [0, 1, 1]}
    config = config_from_hf(hf)
    assert config.moe is not None
    assert config.moe.first_layer == 1
    assert config_to_hf(config)["moe_layer_freq"] == [0, 1, 1]
    with pytest.raises(ValueError, match=r"moe_layer_freq is \[1, 0, 1\]; allowed: zeros, then"):
        config_from_hf({**hf, "moe_layer_freq": [1, 0, 1]})


def test_a_configuration_without_spelling_is_refused(tmp_path: Path) -> None:
    config, _ = loaded(GOLDENS / "llada-mha")
    odd = config.replace(shift_logits=True)
    params = drawn_params(odd)
    with pytest.raises(ValueError, match=r"\['shift_logits'\] .* have no key in family 'llada'"):
        save_huggingface(tmp_path / "saved", odd, params)
    assert not any(tmp_path.iterdir())


def test_saving_into_a_folder_keeps_its_other_files(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "config.json").write_text("old")
    config, params = loaded(GOLDENS / "llada-gqa")
    save_huggingface(tmp_path, config, params, "float32")
    files = {file.name for file in tmp_path.iterdir()}
    assert files == {"config.json", "model.safetensors", "tokenizer.json"}
    assert same_bits(loaded(tmp_path)[1], params)


def test_saving_over_shards_is_refused(tmp_path: Path) -> None:
    folder = write_shards(tmp_path, golden_config("llada-gqa"), golden_tensors("llada-gqa"), 2)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(ValueError, match=r"has model\.safetensors\.index\.json; allowed: a folder"):
        save_huggingface(folder, *loaded(folder))
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.parametrize("existing", [True, False])
def test_an_interrupted_save_leaves_nothing(
    existing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "saved"
    if existing:
        target.mkdir()

    def interrupted(tensors: Any, file: Path, metadata: Any) -> None:
        file.write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(huggingface, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_huggingface(target, *loaded(GOLDENS / "llada-gqa"))
    assert [file.name for file in tmp_path.iterdir()] == (["saved"] if existing else [])
    assert not existing or not any(target.iterdir())


def test_a_full_disk_is_the_systems_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: Any, file: Path, metadata: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(huggingface, "save_file", full)
    with pytest.raises(OSError, match=r"saved was not written: .*No space left on device"):
        save_huggingface(tmp_path / "saved", *loaded(GOLDENS / "llada-gqa"))
    assert not (tmp_path / "saved").exists()


def test_quantized_parameters_are_not_saved(tmp_path: Path) -> None:
    config, params = loaded(GOLDENS / "llada-gqa", "int8")
    with pytest.raises(ValueError, match=r"q_proj\.weight is quantized; allowed: floats"):
        save_huggingface(tmp_path / "saved", config, params)
    assert not any(tmp_path.iterdir())


def test_parameters_of_another_shape_are_not_saved(tmp_path: Path) -> None:
    config, params = loaded(GOLDENS / "llada-gqa")
    with pytest.raises(ValueError, match=r"wte\.weight: .* \[320, 64\], expected \[321, 64\]"):
        save_huggingface(tmp_path / "saved", config.replace(vocab_size=321), params)
    with pytest.raises(ValueError, match=r"the parameters have 21 arrays, the configuration 30"):
        save_huggingface(tmp_path / "saved", config.replace(n_layers=3), params)


def test_a_dtype_that_is_not_saved(tmp_path: Path) -> None:
    config, params = loaded(GOLDENS / "llada-gqa")
    with pytest.raises(ValueError, match=r"dtype is 'int8'; allowed: 'float32', 'bfloat16'"):
        save_huggingface(tmp_path / "saved", config, params, "int8")  # pyright: ignore


def test_the_progress_bar_is_for_large_checkpoints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded(GOLDENS / "llada-gqa")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("llada_jax.checkpoint.tensors._PROGRESS_BYTES", 0)
    loaded(GOLDENS / "llada-gqa")
    assert "llada-gqa: 100%" in capsys.readouterr().err


def test_a_conversion_to_llamas_names_is_the_same_model(tmp_path: Path) -> None:
    spelled = families()["llada"]
    tensors = golden_tensors("llada-gqa")
    renamed = {
        other.format(i=layer): tensors[spelled.names[path].format(i=layer)]
        for path, other in spelled.other_names.items()
        for layer in range(2)
        if spelled.names.get(path, "").format(i=layer) in tensors
    }
    assert len(renamed) == len(tensors)
    folder = write_folder(tmp_path, golden_config("llada-gqa"), renamed)
    assert same_bits(loaded(folder)[1], loaded(GOLDENS / "llada-gqa")[1])


def test_dfactorys_stacked_experts_are_the_same_model(tmp_path: Path) -> None:
    tensors, experts = golden_tensors("llada2-moe"), defaultdict(list)
    for name in sorted(tensors, key=lambda name: [int(n) for n in re.findall(r"\d+", name)]):
        if ".experts." in name:
            layer, _, matrix = re.split(r"\.experts\.(\d+)\.", name.removesuffix(".weight"))
            experts[f"{layer}.experts.{matrix}"].append(tensors.pop(name))
    stacked = {name: np.stack(matrices) for name, matrices in experts.items()}
    hf = {**golden_config("llada2-moe"), "model_type": "llada2_moe_veomni"}
    folder = write_folder(tmp_path, hf, {**tensors, **stacked})
    assert same_bits(loaded(folder)[1], loaded(GOLDENS / "llada2-moe")[1])


@pytest.mark.slow
def test_open_dcoder_computes_what_its_reference_does() -> None:
    config, params, _ = load_params(GOLDENS / "open-dcoder", None, "open_dcoder")
    assert config.shift_logits and config.mask_id == 95
    tokens, expected, _ = golden_forward("open-dcoder")
    np.testing.assert_allclose(logits(config, params, tokens), expected, atol=TOLERANCE)
