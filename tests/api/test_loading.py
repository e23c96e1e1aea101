"""A loaded model: how it is shown, and its logits; and what `describe` says of a checkpoint."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import llada_jax as lj
from llada_jax.checkpoint import model_path
from llada_jax.checkpoint.sources import StoredTensor
from tests.checkpoint.folders import GOLDENS, golden_tensors


@pytest.fixture(scope="module")
def model():
    return lj.load(GOLDENS / "llada-gqa")


def test_forward_gives_float32_logits(model):
    logits = lj.forward(model, [[1, 2, 3], [4, 5, 6]])
    assert logits.shape == (2, 3, 320) and logits.dtype == np.float32


def test_forward_with_a_block_length_is_block_causal(model):
    tokens = np.arange(1, 13)[None]
    changed = np.where(np.arange(12) < 8, tokens, 300)
    for block_length, sees_changes in ((4, False), (8, False), (12, True), (None, True)):
        one, other = (lj.forward(model, t, block_length=block_length) for t in (tokens, changed))
        assert bool((one[:, :8] != other[:, :8]).any()) == sees_changes


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        ([[1, 320]], {}, "tokens span 1 to 320; allowed: 0 to 319"),
        ([[-1]], {}, "tokens span -1 to -1; allowed"),
        ([1, 2], {}, r"tokens are int32 of shape \(2,\); allowed: integers \[B, L\]"),
        ([[]], {}, r"tokens are float32 of shape \(1, 0\); allowed"),
        ([[0.5]], {}, r"tokens are float32 of shape \(1, 1\); allowed: integers"),
        ([[1]], {"block_length": 0}, "block_length is 0; allowed: 1 or more"),
    ],
)
def test_forward_refuses(model, tokens, options, message):
    with pytest.raises(ValueError, match=message):
        lj.forward(model, tokens, **options)


def test_a_model_is_shown_in_one_line(model):
    parts = f"Model({str(GOLDENS / 'llada-gqa')!r}, family llada, ", " parameters, float32)"
    assert repr(model).startswith(parts[0]) and repr(model).endswith(parts[1])
    tiny = lj.load("tiny")
    assert repr(tiny) == "Model('tiny', family llada, 984,192 parameters, float32)"
    assert repr(tiny._replace(source=None)).startswith("Model(family llada, 984,192 ")


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
def test_a_model_says_how_its_matrices_are_stored(dtype):
    assert repr(lj.load("tiny", dtype)).endswith(f", {dtype})")


def test_what_is_not_in_a_models_layers_is_not_shown():
    tiny = lj.load("tiny")
    assert repr(lj.tiled(tiny)).endswith(", q4_0 tiles)")
    assert repr(tiny._replace(params=None, artifact=Path("folder"))).endswith(", exported)")


def test_a_familys_template_gets_its_variables(tmp_path):
    """dllm's small models are asked without thinking, which Qwen3's template has to be told."""
    folder = tmp_path / "model"
    shutil.copytree(GOLDENS / "a2d-qwen3-mdlm", folder)
    shutil.copy(model_path("tiny") / "tokenizer.json", folder)
    (folder / "chat_template.jinja").write_text(
        "{% if enable_thinking is false %}at once{% endif %}"
    )
    tokenizer = lj.load(folder).tokenizer
    assert tokenizer is not None and tokenizer.apply_chat_template([]) == "at once"


@pytest.fixture
def no_weight_is_read(monkeypatch):
    monkeypatch.setattr(StoredTensor, "pieces", lambda *_: pytest.fail("a tensor was read"))


@pytest.mark.usefixtures("no_weight_is_read")
def test_a_folder_is_described():
    found = lj.describe(GOLDENS / "sdar-b4")
    tensors = golden_tensors("sdar-b4").values()
    assert found.parameters == sum(tensor.size for tensor in tensors)
    assert found.bytes == sum(tensor.nbytes for tensor in tensors)
    assert found.kinds == {"F32": len(tensors)}
    assert found.presets == ("sdar",)
    assert found.missing == ("tokenizer.json", "a chat template")
    told = str(found)
    for line in (
        "family      sdar",
        "ids         mask 319, eos 317, stop 318",
        "causal between blocks of 4",
    ):
        assert line in told


@pytest.mark.usefixtures("no_weight_is_read")
def test_what_is_missing_is_named():
    missing = lj.describe(GOLDENS / "fast-dllm-v2").missing
    assert missing[0] == "a mask id (SamplerConfig.from_flat(mask_id=...))"
    assert lj.describe("tiny_moe").missing == ()
    assert "8 experts, 2 a token" in str(lj.describe("tiny_moe"))
    assert "predict the next position" in str(lj.describe(GOLDENS / "dream"))


@pytest.mark.usefixtures("no_weight_is_read")
def test_what_does_not_load_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no model at"):
        lj.describe(tmp_path / "absent")
    with pytest.raises(ValueError, match="family is 'lama'; allowed"):
        lj.describe("tiny", family="lama")
