"""Weights quantized by MLX: the same values, and files that are refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import llada_jax as lj
from llada_jax.checkpoint.huggingface import tensors_of
from llada_jax.checkpoint.mlx import BITS, mlx_tensors
from tests.checkpoint.folders import GOLDENS, golden_config, golden_tensors, write_folder

GROUP = 32
LAYER = "model.layers.0.mlp.down_proj"


@pytest.mark.parametrize("bits", BITS)
def test_values_match_mlx(bits: int, tmp_path: Path) -> None:
    golden = np.load(GOLDENS / "mlx" / "quantized.npz")
    names = {"weight": "words", "scales": "scales", "biases": "biases"}
    save_file({f"x.{ours}": golden[f"{its}{bits}"] for ours, its in names.items()},
              tmp_path / "x.safetensors")  # fmt: skip
    stored = mlx_tensors(tensors_of(tmp_path / "x.safetensors"), {"group_size": 64, "bits": bits})
    tensor = stored["x.weight"]
    assert [*stored] == ["x.weight"] and tensor.shape == (6, 128)
    for start, stop in ((0, 6), (2, 5)):
        found = tensor.decode(tensor.read(start, stop))
        expected = golden[f"values{bits}"][start:stop]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def quantized(matrix: np.ndarray, bits: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The three parts of a matrix, and its dequantized values."""
    grouped = matrix.reshape(len(matrix), -1, GROUP)
    low, high = grouped.min(-1, keepdims=True), grouped.max(-1, keepdims=True)
    scale = (high - low) / ((1 << bits) - 1)
    numbers = np.round((grouped - low) / scale).astype(np.uint32)
    shifted = numbers.reshape(len(matrix), -1, 32 // bits) << np.arange(0, 32, bits, np.uint32)
    parts = {"weight": np.bitwise_or.reduce(shifted, -1), "scales": scale[..., 0],
             "biases": low[..., 0]}  # fmt: skip
    return parts, (scale * numbers.astype(np.float32) + low).reshape(matrix.shape)


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A folder in 4 bits, one matrix in 8, and the values of its tensors."""
    stored, values = {}, {}
    for name, tensor in golden_tensors("ar-llama").items():
        layer = name.removesuffix(".weight")
        stored[name] = values[name] = tensor
        if tensor.ndim == 2:
            parts, values[name] = quantized(tensor, 8 if layer == LAYER else 4)
            stored |= {f"{layer}.{part}": array for part, array in parts.items()}
    own = {"group_size": GROUP, "bits": 8}
    settings = {"group_size": GROUP, "bits": 4, "mode": "affine", LAYER: own}
    hf = golden_config("ar-llama") | {"quantization": settings, "quantization_config": settings}
    return write_folder(tmp_path / "mlx", hf, stored), values


def test_a_model_loads_as_its_dequantized_values(model) -> None:
    folder, values = model
    params = lj.load(folder).params
    np.testing.assert_array_equal(params.embedding, values["model.embed_tokens.weight"])
    np.testing.assert_array_equal(params.layers[0].ffn.down, values[f"{LAYER}.weight"])
    name = "model.layers.1.self_attn.v_proj.weight"
    np.testing.assert_array_equal(params.layers[1].attention.value, values[name])
    assert lj.describe(folder).kinds == {"MLX4": 15, "MLX8": 1, "F32": 5}
    assert lj.load(folder, "int8").stored_as == "int8"


def test_an_adapter_on_an_mlx_model(model) -> None:
    folder, values = model
    name = "model.layers.0.self_attn.q_proj"
    halves = load_file(GOLDENS / "ar-llama-lora" / "adapter_model.safetensors")
    a, b = (halves[f"base_model.model.{name}.lora_{half}.weight"] for half in "AB")
    found = lj.load(folder, adapter=GOLDENS / "ar-llama-lora").params.layers[0].attention.query
    np.testing.assert_allclose(found, values[f"{name}.weight"] + 2 * b @ a, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 3}, "bits of quantization is 3; allowed: 2, 4, 8"),
        ({"bits": None}, "bits of quantization is None; allowed: 2, 4, 8"),
        ({"group_size": "64"}, "group_size of quantization is '64'; allowed: a multiple of 32"),
        ({"group_size": 64}, r"scales is F32 \[96, 2\]; allowed: floats \[96, 1\], of 4 bits"),
        ({"mode": "mxfp4"}, "mode of quantization is 'mxfp4'; allowed: 'affine'"),
        ({LAYER: {"group_size": 32, "bits": 5}}, f"bits of {LAYER} is 5"),
    ],
)
def test_other_settings_are_refused(model, changes: dict, message: str) -> None:
    folder, _ = model
    hf = json.loads((folder / "config.json").read_text())
    hf["quantization"] |= changes
    (folder / "config.json").write_text(json.dumps(hf))
    with pytest.raises(ValueError, match=message):
        lj.load(folder)


def test_a_part_that_is_missing(model) -> None:
    folder, _ = model
    tensors = load_file(folder / "model.safetensors")
    del tensors[f"{LAYER}.biases"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=rf"lacks {LAYER}\.biases"):
        lj.load(folder)
