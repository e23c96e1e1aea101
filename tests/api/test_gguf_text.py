"""A GGUF file alone is enough for chats and text."""

from pathlib import Path

import gguf
import pytest

import llada_jax as lj
from tests.checkpoint.test_gguf import finish, gguf_tensors, golden_tensors, writer
from tests.tokenizer_files import add_metadata, gguf_metadata

CHAT = [{"role": "user", "content": "the other <|im_end|>"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    out = writer(path, "llada-gqa")
    for name in ("tokens", "mask_token_id", "eos_token_id", "padding_token_id"):
        del out.kv_data[0][f"tokenizer.ggml.{name}"]
    add_metadata(out, gguf_metadata("llama-bpe"))
    for name, tensor in gguf_tensors("llada-gqa", golden_tensors("llada-gqa")).items():
        out.add_tensor(name, tensor, raw_dtype=gguf.GGMLQuantizationType.F32)
    finish(out)
    return path


def test_a_gguf_file_alone_decodes_text_with_its_template(path):
    model = lj.load(path)
    tokenizer = model.tokenizer
    assert tokenizer is not None and model.config.mask_id == tokenizer.mask_id
    prompt = tokenizer.encode_chat(CHAT)
    assert prompt.count(tokenizer.eos_id) == 1
    spelled = tokenizer.decode(prompt, skip_special_tokens=False)
    assert spelled.startswith("<|im_start|>user\nthe other <|im_end|><|im_end|>\n<|im_start|>assi")
    assert tokenizer.decode(prompt).endswith("\nassistant\n")
    assert "a chat template" not in lj.describe(path).missing
