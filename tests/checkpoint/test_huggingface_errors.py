"""Every fault of a folder is one clear error, raised before a tensor is read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from llada_jax.checkpoint.sources import StoredTensor
from tests.checkpoint.folders import (
    golden_config,
    golden_tensors,
    loaded,
    write_folder,
    write_shards,
)

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
QUERY = "model.transformer.blocks.0.q_proj.weight"


@pytest.fixture(autouse=True)
def no_tensor_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*arguments: Any) -> None:
        pytest.fail("a tensor was read")

    monkeypatch.setattr(StoredTensor, "pieces", read)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model", golden_config("llada-gqa"), golden_tensors("llada-gqa"))


def rewrite_config(folder: Path, **changes: Any) -> None:
    config = {**golden_config("llada-gqa"), **changes}
    (folder / "config.json").write_text(json.dumps(config))


def rewrite_tensors(folder: Path, **changes: Any) -> None:
    tensors = {**golden_tensors("llada-gqa"), **changes}
    save_file({k: v for k, v in tensors.items() if v is not None}, folder / WEIGHTS)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no model at .*absent"):
        loaded(tmp_path / "absent")


def test_a_missing_model_of_the_hub() -> None:
    with pytest.raises(FileNotFoundError, match=r"no model at 'absent/LLaDA'.*HF_HUB_OFFLINE is"):
        loaded(Path("absent/LLaDA"))


def test_pickled_weights_are_converted_first(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"weights in pytorch_model\.bin; allowed: .*convert"):
        loaded(folder)
    with pytest.raises(
        ValueError, match=r"pytorch_model\.bin' has pickled weights; allowed: .*conv"
    ):
        loaded(folder / "pytorch_model.bin")


@pytest.mark.parametrize("share", [0.0, float("nan"), "half"])
def test_a_share_of_rotated_dimensions(folder: Path, share: Any) -> None:
    rewrite_config(folder, partial_rotary_factor=share)
    with pytest.raises(ValueError, match=f"partial_rotary_factor is {share!r}; allowed: above 0"):
        loaded(folder)


def test_no_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"no config\.json in .*model"):
        loaded(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", r"config\.json is no JSON:"), ("[]", r"config\.json is no JSON: it has \[\]"),
     (b"\xff\xfe\x00", r"config\.json is no JSON:")],
)  # fmt: skip
def test_unparsable_configuration(folder: Path, content: str | bytes, message: str) -> None:
    raw = content if isinstance(content, bytes) else content.encode()
    (folder / "config.json").write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        loaded(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, r"model_type is 'gpt2'; allowed: 'llada', .*'Dream'"),
        ({"model_type": None}, r"model_type is None; allowed:"),
        ({"d_model": None}, r"lacks 'd_model' or 'hidden_size'"),
        ({"d_model": "64"}, r"d_model is '64'; allowed: a number"),
        ({"d_model": 10**40}, r"d_model is 10+; allowed: a number"),
        ({"d_model": float("inf")}, r"d_model is inf; allowed: a number"),
        ({"n_heads": False}, r"n_heads is False; allowed: 1 or more"),
        ({"n_layers": 2**24}, r"n_layers is 16777216; allowed: 1 to 1000"),
        ({"mask_token_id": True}, r"mask_id is True; allowed: 0 to 319"),
        ({"weight_tying": 0}, r"weight_tying is 0; allowed: true or false"),
        ({"n_heads": 0}, r"n_heads is 0; allowed: 1 or more"),
        ({"n_layers": 0}, r"n_layers is 0; allowed: 1 to 1000"),
        ({"n_kv_heads": 3}, r"n_kv_heads is 3; allowed: a divisor of n_heads \(4\)"),
        ({"alibi": True}, r"alibi is True; allowed: False"),
        ({"rope_scaling": {"type": "yarn"}}, r"beta_fast of yarn is None; allowed: 32"),
        ({"activation_type": "gelu"}, r"activation_type is 'gelu'; allowed: 'silu'"),
        ({"include_bias": True}, r"include_bias is True; allowed: False"),
    ],
)
def test_unsupported_configuration(folder: Path, changes: dict[str, Any], message: str) -> None:
    rewrite_config(folder, **changes)
    with pytest.raises(ValueError, match=message):
        loaded(folder)


def test_no_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    with pytest.raises(FileNotFoundError, match=rf"no {WEIGHTS} and no {INDEX} in"):
        loaded(folder)


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_weights_that_are_cut_short(folder: Path, keep: int) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:keep])
    with pytest.raises(ValueError, match=rf"{WEIGHTS} is no safetensors file, or is cut short: "):
        loaded(folder)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    rewrite_tensors(folder, **{QUERY: None})
    with pytest.raises(ValueError, match=rf"model lacks {QUERY}$"):
        loaded(folder)


def test_many_missing_tensors_are_counted(folder: Path) -> None:
    rewrite_config(folder, n_layers=4)
    with pytest.raises(ValueError, match=r"blocks\.2\.attn_norm\.weight, .* and 14 more$"):
        loaded(folder)


def test_a_tensor_of_the_wrong_shape(folder: Path) -> None:
    rewrite_tensors(folder, **{QUERY: np.zeros((64, 60), np.float32)})
    with pytest.raises(ValueError, match=rf"{QUERY} is \[64, 60\], expected \[64, 64\]"):
        loaded(folder)


def test_a_tensor_of_an_unsupported_type(folder: Path) -> None:
    rewrite_tensors(folder, **{QUERY: np.zeros((64, 64), np.int8)})
    with pytest.raises(ValueError, match=rf"{QUERY} is I8; allowed: F32, F16, BF16"):
        loaded(folder)


def test_a_missing_shard(tmp_path: Path) -> None:
    folder = write_shards(tmp_path, golden_config("llada-gqa"), golden_tensors("llada-gqa"), 3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    message = r"lacks model-00002-of-00003\.safetensors, named by model\.safetensors\.index\.json"
    with pytest.raises(FileNotFoundError, match=message):
        loaded(folder)


@pytest.mark.parametrize(("content", "message"), [("{}", "lacks 'weight_map'"), ("{", "no JSON")])
def test_an_unusable_index(folder: Path, content: str, message: str) -> None:
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text(content)
    with pytest.raises(ValueError, match=message):
        loaded(folder)


def test_an_unknown_dtype(folder: Path) -> None:
    message = r"dtype is 'float16'; allowed: None, 'float32', 'bfloat16', 'int8', 'int4'"
    with pytest.raises(ValueError, match=message):
        loaded(folder, "float16")
    with pytest.raises(ValueError, match=r"dtype is <class 'numpy.float32'>; allowed: None"):
        loaded(folder, np.float32)  # pyright: ignore


def test_int4_needs_whole_groups(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, golden_config("llada-moe"), golden_tensors("llada-moe"))
    message = r"dtype is 'int4', but .*experts\.0\.down_proj\.weight has 48 inputs; allowed: a mult"
    with pytest.raises(ValueError, match=message):
        loaded(folder, "int4")


def test_unused_tensors_are_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    rewrite_tensors(folder, **{"lora.weight": np.zeros(3, np.float32)})
    with pytest.warns(UserWarning, match=r"no parameter reads: lora\.weight"):
        loaded(folder)
