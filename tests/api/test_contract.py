"""The contract of exports: what it states agrees with the objects that decode."""

import json
from typing import Any

import jsonschema
import pytest

import llada_jax as lj
from llada_jax.api.contract import contract_of, described_chat
from llada_jax.backend.exported.writer import HOST
from llada_jax.backend.protocol import Bucket
from llada_jax.backend.steps import body_step, head_step, logits_step
from llada_jax.config import ExportConfig, ModelConfig
from llada_jax.text import Tokenizer
from tests.backend.models import GQA
from tests.tokenizer_files import TEMPLATE, write_folder

SCHEMA = json.loads((HOST / "manifest.schema.json").read_text())
CONTRACT = {"$ref": "#/$defs/contract", "$defs": SCHEMA["$defs"]}
FAMILIES: dict[str, tuple[dict[str, Any], str, str]] = {
    "llada": ({}, "blockwise", "sampler_block"),
    "dream": ({"shift_logits": True, "qkv_bias": True}, "dream", "all"),
    "sdar": ({"block_length": 4}, "sdar", "model_block"),
    "fast_dllm_v2": ({"shift_logits": True, "block_length": 32}, "fast_dllm_v2", "model_block"),
    "nemotron": ({"causal": "finished"}, "nemotron", "finished"),
    "wedlm": ({"causal": "filled"}, "blockwise", "filled"),
    "qwen3": ({"causal": "finished", "mask_id": None}, "autoregressive", "finished"),
}
"""Changes of a model, default sampler and its attention."""


def contract(model: ModelConfig, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """The contract as JSON has it, checked against the schema."""
    made = json.loads(json.dumps(contract_of(model, ExportConfig(), tokenizer)))
    jsonschema.validate(made, CONTRACT)
    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str) -> None:
    changes, sampler, attention = FAMILIES[family]
    made = contract(GQA.replace(family=family, **changes))
    assert made["default_sampler"] == sampler
    assert made["samplers"][sampler]["attention"] == attention
    assert made["shift"] == int(changes.get("shift_logits", False))
    assert made["model_block"] == changes.get("block_length")
    assert made["mask_id"] == (96 if family == "qwen3" else 95)
    words = "\n".join(made["text"])
    assert ("Outputs are shifted" in words) == bool(made["shift"])
    assert ("causal between blocks of" in words) == bool(made["model_block"])
    assert f"attention {attention}:" in words


def test_numbers_of_a_sampler() -> None:
    sampler = contract(GQA.replace(family="sdar", block_length=4))["samplers"]["sdar"]
    config = lj.SamplerConfig.preset("sdar")
    assert sampler["threshold"] == config.as_dict()["threshold"] == 0.85
    assert sampler["strict_threshold"] and sampler["forced_progress"] == "quota"
    assert (sampler["block_length"], sampler["gen_length"]) == (4, config.gen_length)
    assert sampler["forbidden_ids"] == [] and sampler["steps"] is None
    assert contract(GQA)["samplers"]["blockwise"]["forbidden_ids"] == [GQA.mask_id]
    assert contract(GQA)["samplers"]["fast_dllm"]["head"] == "head_chunk"


def test_samplers_that_a_host_cannot_run_are_left_out() -> None:
    assert contract(GQA)["samplers"].keys() == {"llada", "threshold", "fast_dllm", "blockwise"}


def test_arrays_of_the_graphs() -> None:
    sizes = {
        "R": 4, "C": 8, "C+R": 12, "D": GQA.width, "half": GQA.rotary_dims // 2,
        "K": GQA.n_kv_heads, "Dh": GQA.head_dim, "V": GQA.vocab_size,
    }  # fmt: skip
    steps = {
        "body": body_step(GQA, range(1), Bucket(4, 8)),
        "head": head_step(GQA, 4),
        "head_chunk": logits_step(GQA, 4, 0),
    }
    arrays = contract(GQA)["arrays"]
    for graph, step in steps.items():
        named = {
            name.replace("<layer>", "0"): tuple(sizes[letter] for letter in shape.split())
            for name, shape in arrays[graph]["inputs"].items()
        }
        assert named == dict(step.inputs)


def test_packed_canvases_are_described() -> None:
    assert not any("canvases<n>" in line for line in contract(GQA)["text"])
    packed = contract_of(GQA, ExportConfig(canvases=(1, 4)), None)
    assert any("canvases<n>" in line for line in packed["text"])


def test_a_scaled_rope_is_named() -> None:
    model = GQA.replace(rope_scaling="yarn", rope_factor=4.0, rope_length=32)
    assert any("RoPE, scaled by yarn:" in line for line in contract(model)["text"])


def with_template(tokenizer: Tokenizer, template: str | None) -> Tokenizer:
    return Tokenizer(tokenizer.backend, tokenizer.special_tokens, template)


DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
    + TEMPLATE
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + TEMPLATE
COUNTS = "{{ messages | length }}" + TEMPLATE


@pytest.mark.parametrize(
    "template",
    [DEFAULT_SYSTEM, *(pytest.param(t, marks=pytest.mark.slow) for t in (TEMPLATE, NO_SYSTEM))],
)
def test_templates_as_prefixes_and_suffixes(template: str, tmp_path: Any) -> None:
    tokenizer = with_template(
        Tokenizer.from_folder(write_folder(tmp_path, "Qwen2Tokenizer")), template
    )
    made = contract(GQA, tokenizer)
    assert made["nfc"] is not None, "Qwen's tokenizer composes characters"
    chats = [[("user", "the café")], [("user", "a"), ("assistant", "b"), ("user", "c")]]
    if template is not NO_SYSTEM:
        chats.append([("system", "d"), ("user", "a")])
    for chat in chats:
        messages = [{"role": role, "content": content} for role, content in chat]
        assert described_chat(made["chat"], chat) == tokenizer.apply_chat_template(messages)


@pytest.mark.slow
def test_other_templates_are_left_out(tmp_path: Any) -> None:
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, "Qwen2Tokenizer"))
    for template in (None, COUNTS):
        assert contract(GQA, with_template(tokenizer, template))["chat"] is None


def test_bundled_templates_trim() -> None:
    tokenizer = lj.load("tiny").tokenizer
    chat = contract(lj.load("tiny").config, tokenizer)["chat"]
    assert chat["trim"] and chat["roles"].keys() == {"user", "assistant", "system"}
