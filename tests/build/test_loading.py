"""A loaded model: how it is shown, and its logits."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import llada_jax as lj
from llada_jax.checkpoint import model_path

GOLDENS = Path(__file__).parents[1] / "goldens"


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
