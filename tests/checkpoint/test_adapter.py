"""LoRA adapters of peft: outputs of the base with an adapter, and refused adapters."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import llada_jax as lj
from llada_jax.checkpoint import fingerprint
from tests.checkpoint.folders import GOLDENS, TOLERANCE, golden_tensors, write_folder

BASE, ADAPTER = GOLDENS / "ar-llama", GOLDENS / "ar-llama-lora"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
DOWN = "base_model.model.model.layers.0.mlp.down_proj"


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    shutil.copytree(ADAPTER, folder)
    return folder


def change(adapter: Path, **changes) -> None:
    settings = json.loads((adapter / CONFIG).read_text()) | changes
    (adapter / CONFIG).write_text(json.dumps(settings))


def test_the_merged_model_agrees_with_peft() -> None:
    """Separate ranks and scales for some modules, and a fully trained head."""
    data = np.load(ADAPTER / "forward.npz")
    model = lj.load(BASE, adapter=ADAPTER)
    found = lj.forward(model, data["tokens"])
    np.testing.assert_allclose(found, data["logits"], rtol=0, atol=TOLERANCE)
    assert model.fingerprint == fingerprint(BASE, ADAPTER) != fingerprint(BASE)


def test_rslora_scales_by_the_root_of_the_rank(adapter: Path) -> None:
    change(adapter, use_rslora=True, alpha_pattern={})
    tensors = load_file(adapter / WEIGHTS)
    name = "model.layers.0.mlp.down_proj.weight"
    a, b = (tensors[f"base_model.model.{name[:-7]}.lora_{half}.weight"] for half in "AB")
    expected = golden_tensors("ar-llama")[name] + 8 / 2 * b @ a  # alpha 8, rank 4
    found = lj.load(BASE, adapter=adapter).params.layers[0].ffn.down
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_other_dtypes_are_applied_to_the_merged_matrix(dtype: str, tmp_path: Path) -> None:
    merged = {k: np.array(v) for k, v in golden_tensors("ar-llama").items()}
    exact = lj.load(BASE, adapter=ADAPTER).params
    for index, layer in enumerate(exact.layers):
        merged[f"model.layers.{index}.mlp.down_proj.weight"] = np.array(layer.ffn.down)
    hf = json.loads((BASE / "config.json").read_text())
    expected = lj.load(write_folder(tmp_path, hf, merged), dtype).params.layers[1].ffn.down
    found = lj.load(BASE, dtype, adapter=ADAPTER).params.layers[1].ffn.down
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_adapter_alone_needs_its_base() -> None:
    for look in (lj.load, lj.describe):
        with pytest.raises(ValueError, match=r"adapter, of 'ar-llama'; allowed: the base with"):
            look(ADAPTER)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "LOHA"}, "peft_type of .* is 'LOHA'; allowed: 'LORA'"),
        ({"use_dora": True}, "has {'use_dora': True}; allowed: plain LoRA"),
        ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4'}; allowed: plain LoRA"),
        ({"fan_in_fan_out": True}, "has {'fan_in_fan_out': True}"),
        ({"lora_alpha": "8"}, r"lora_alpha of .* is \['8'\]; allowed: a number"),
        ({"alpha_pattern": {"v_proj": None}}, r"lora_alpha of .* is \[None\]"),
        ({"alpha_pattern": {"v.*|q": 3}}, "alpha_pattern is .*; allowed: an object whose keys"),
    ],
)
def test_other_adapters_are_refused(adapter: Path, changes: dict, message: str) -> None:
    change(adapter, **changes)
    with pytest.raises(ValueError, match=message):
        lj.load(BASE, adapter=adapter)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{DOWN}.lora_B.weight": None}, "lacks .*down_proj.lora_B"),
        ({f"{DOWN}.lora_A.weight": np.ones((4, 64))}, r"are \[4, 64\] and \[64, 4\]; allowed for"),
        ({f"{DOWN}.lora_magnitude_vector": np.ones(64)}, "which no tensor of the base takes"),
        ({"base_model.model.other.lora_A.weight": np.ones((4, 4))}, "has no other.weight"),
        ({"base_model.model.lm_head.weight": np.ones((97, 64))}, "lm_head.weight, which no tensor"),
        ({f"{DOWN}.lora_A.weight": np.full((4, 96), np.nan)}, "NaN or infinite"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(adapter: Path, changes: dict, message: str) -> None:
    tensors = load_file(adapter / WEIGHTS) | changes
    kept = {k: np.float32(v) for k, v in tensors.items() if v is not None}
    save_file(kept, adapter / WEIGHTS)
    with pytest.raises(ValueError, match=message):
        lj.load(BASE, adapter=adapter)


def test_files_that_are_missing(adapter: Path) -> None:
    (adapter / WEIGHTS).unlink()
    with pytest.raises(FileNotFoundError, match=WEIGHTS):
        lj.load(BASE, adapter=adapter)
    (adapter / CONFIG).unlink()
    with pytest.raises(FileNotFoundError, match=CONFIG):
        lj.load(BASE, adapter=adapter)
