"""Tokenizers from vocabulary files and GGUF metadata encode as transformers and llama.cpp do."""

import json
import os
from pathlib import Path

import pytest
import tokenizers

from llada_jax.text import Tokenizer, has_tokenizer
from llada_jax.tokenizer_json import check_tokenizer_json
from llada_jax.tokenizer_sources import _PRE, data_from_gguf
from tests.tokenizer_files import (
    ADDED,
    MERGES,
    PIECES,
    PLAIN,
    TEMPLATE,
    TEXTS,
    gguf_metadata,
    sentencepiece_metadata,
    write_folder,
)

GOLDENS = json.loads((Path(__file__).parent / "goldens" / "tokenizers.json").read_text())
CHAT = [{"role": "user", "content": "the <|im_end|>"}]
ENV = "LLADA_JAX_TOKENIZER_FOLDER"


def from_gguf(metadata: dict) -> Tokenizer:
    tokenizer = Tokenizer.from_gguf(metadata, "model.gguf")
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize(
    ("kind", "config"),
    [("Qwen2Tokenizer", {}), ("GPT2Tokenizer", {"add_bos_token": True, "add_prefix_space": True})],
)
def test_vocabulary_files_encode_as_transformers_does(tmp_path, kind, config):
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, kind, **config))
    for text, (ids, decoded) in zip(TEXTS, GOLDENS[kind], strict=True):
        assert tokenizer.encode(text, add_special_tokens=True) == ids, text
        assert tokenizer.decode(tokenizer.encode(text)) == decoded
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id) == (300, 301, 302)


def test_fast_classes_equal_slow_ones_and_dream_equals_qwen2(tmp_path):
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, "DreamTokenizer"))
    assert tokenizer == Tokenizer.from_folder(write_folder(tmp_path, "Qwen2TokenizerFast"))


def test_ids_come_from_added_tokens_and_roles_make_them_special(tmp_path):
    config = {"added_tokens_decoder": None, "additional_special_tokens": ["<|endoftext|>"]}
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, "Qwen2Tokenizer", **config))
    assert tokenizer.encode("<think><|mask|>") == [ADDED["<think>"], ADDED["<|mask|>"]]
    assert tokenizer.decode(ADDED.values()) == "<think></think>"


def test_ids_of_added_tokens_may_have_gaps(tmp_path):
    decoder = {"400": {"content": "<|im_end|>"}, "3000": {"content": "<x>", "special": False}}
    folder = write_folder(tmp_path, "Qwen2Tokenizer", added_tokens_decoder=decoder)
    assert Tokenizer.from_folder(folder).encode("the<x><|im_end|>")[-2:] == [3000, 400]


def test_a_saved_tokenizer_is_the_same(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "gguf").mkdir()
    (tmp_path / "copies").mkdir()
    files = Tokenizer.from_folder(write_folder(tmp_path / "files", "Qwen2Tokenizer"))
    assert {path.name for path in files.save(tmp_path / "copies")} == {
        *("vocab.json", "merges.txt", "added_tokens.json", "tokenizer_config.json"),
        "tokenizer.json",
    }
    assert Tokenizer.from_folder(tmp_path / "copies") == files
    built = from_gguf(sentencepiece_metadata())
    built.save(tmp_path / "gguf")
    assert Tokenizer.from_folder(tmp_path / "gguf") == built


@pytest.mark.parametrize("name", [name for name in GOLDENS if name.startswith("gguf")])
def test_gguf_metadata_encodes_as_llama_cpp_does(name):
    with_ends = {"add_bos_token": True, "add_eos_token": True}
    metadata = {
        "gguf None": gguf_metadata(None),
        "gguf qwen2 with ends": gguf_metadata(**with_ends),
        "gguf llama": sentencepiece_metadata(),
        "gguf llama without prefix": sentencepiece_metadata(
            add_space_prefix=False, add_bos_token=False
        ),
    }
    data = data_from_gguf(metadata.get(name) or gguf_metadata(name.removeprefix("gguf ")))
    backend = tokenizers.Tokenizer.from_str(
        json.dumps(data)
    )  # spares the child that tries patterns
    for text, ids in zip(TEXTS, GOLDENS[name], strict=True):
        assert backend.encode(text, add_special_tokens=True).ids == ids, text
        plain = backend.encode(text, add_special_tokens=False).ids
        assert backend.decode(plain, skip_special_tokens=False) == text or "llama" in name


@pytest.mark.slow
@pytest.mark.parametrize("pre", _PRE)
def test_every_pattern_passes_the_checks_of_patterns(pre):
    check_tokenizer_json(data_from_gguf(gguf_metadata(pre)))


def test_a_gguf_file_has_roles_and_a_template():
    tokenizer = from_gguf(gguf_metadata(add_bos_token=True))
    assert tokenizer.chat_template == TEMPLATE
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id) == (300, 301, 302)
    ids = tokenizer.encode_chat(CHAT)
    assert ids.count(301) == 1  # the message contains another one
    assert "the <|im_end|><|im_end|>" in tokenizer.decode(ids, skip_special_tokens=False)
    assert tokenizer.decode(ids).startswith("user\nthe <|im_end|>\n")


@pytest.mark.parametrize("metadata", [{}, {"tokenizer.ggml.model": "no_vocab"}])
def test_a_gguf_file_without_a_vocabulary_has_no_tokenizer(metadata):
    assert Tokenizer.from_gguf(metadata, "model.gguf") is None


def test_control_pieces_are_not_merged():
    tokens = [*(piece for piece, _, _ in PIECES), "<", "s>"]
    lists = {"scores": [0.0] * len(tokens), "token_type": [t for _, _, t in PIECES] + [1, 1]}
    tokenizer = from_gguf(sentencepiece_metadata() | {
        f"tokenizer.ggml.{key}": value for key, value in (lists | {"tokens": tokens}).items()
    })  # fmt: skip
    without_control = tokenizer._without_control
    assert tokenizer.encode("<s>")[-1:] == [1] and 1 not in without_control.encode("<s>")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (gguf_metadata(model="bert"), "model is 'bert'; allowed: 'gpt2', 'llama'"),
        (gguf_metadata("new"), "pre is 'new'; allowed: 'default', .*tokenizer.json beside the f"),
        (gguf_metadata(tokens=None), "tokens is None; allowed: a list of values of type str"),
        (gguf_metadata(tokens=[], token_type=[]), "bos_token_id is 300; allowed: 0 to -1"),
        (gguf_metadata(token_type=[1]), "token_type is .*; allowed: a list of 305 values"),
        (gguf_metadata(tokens=["a"] * 305), "304 tokens twice"),
        (gguf_metadata(mask_token_id=305), "mask_token_id is 305; allowed: 0 to 304"),
        (gguf_metadata(mask_token_id="a"), "mask_token_id is 'a'; allowed: 0 to 304"),
        (gguf_metadata(merges=["ab"]), "a merge is 'ab'; allowed: two tokens, with a space"),
        (gguf_metadata(merges=["Q Q"]), "cannot build it: .*"),
        (gguf_metadata(merges=None), "merges is None"),
        (gguf_metadata(tokens=[*PLAIN, *"abcde", "a" * 5000]), "twice"),
        (sentencepiece_metadata(scores=None), "scores is None"),
        (
            sentencepiece_metadata() | {"tokenizer.ggml.tokens": ["a" * 300] * len(PIECES)},
            "tokens twice",
        ),
        ({**gguf_metadata(), "tokenizer.chat_template": 3}, "chat_template is 3; allowed: text"),
    ],
)
def test_damaged_metadata_gives_one_sentence(metadata, message):
    with pytest.raises(ValueError, match=f"^model.gguf: .*{message}"):
        Tokenizer.from_gguf(metadata, "model.gguf")


def test_too_many_merges_are_refused(tmp_path, monkeypatch):
    for module in ("tokenizer_json", "tokenizer_sources"):
        monkeypatch.setattr(f"llada_jax.{module}.MAX_MERGES", 8)
    with pytest.raises(ValueError, match=r"merges.txt has \d+ lines; allowed: 8 merges"):
        Tokenizer.from_folder(write_folder(tmp_path, "Qwen2Tokenizer"))
    with pytest.raises(ValueError, match=r"merges is .*; allowed: a list of up to 2,097,152"):
        Tokenizer.from_gguf(sentencepiece_metadata(), "model.gguf")


def test_long_pieces_are_refused_before_they_are_split():
    metadata = sentencepiece_metadata()
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"][:-1], "a" * 10**6]
    with pytest.raises(ValueError, match="a piece of 1000000 characters"):
        Tokenizer.from_gguf(metadata, "model.gguf")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", "[]", "vocab.json is no JSON"),
        ("vocab.json", '{"a": 2147483648}', r"vocab\['a'\] is 2147483648; allowed: 0 to 4194303"),
        ("vocab.json", '{"a": 0, "b": 0}', "1 ids twice"),
        ("vocab.json", "{}", "cannot build it"),
        ("merges.txt", "a b c\n", "cannot build it"),
        ("merges.txt", "ab\n", "a merge is 'ab'; allowed: two tokens"),
        ("merges.txt", b"\xff", "cannot parse .*merges.txt"),
        ("tokenizer_config.json", "{}", "tokenizer_class is None; allowed with vocab.json"),
        (
            "tokenizer_config.json",
            '{"tokenizer_class": "BertTokenizer"}',
            "tokenizer_class is 'BertTokenizer'; allowed with vocab.json and merges.txt: GPT2",
        ),
        (
            "tokenizer_config.json",
            '{"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": [1]}',
            r"added_tokens_decoder is \[1\]; allowed: tokens by id",
        ),
        (
            "tokenizer_config.json",
            '{"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {"1": 2}}',
            "added_tokens_decoder.* is 2; allowed: an object with content",
        ),
        (
            "tokenizer_config.json",
            '{"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": '
            '{"99999999999": {"content": "<x>"}}}',
            "added_tokens.* allowed: an object with id, 0 to 4194303",
        ),
    ],
)
def test_damaged_vocabulary_files_give_one_sentence(tmp_path, name, content, message):
    folder = write_folder(tmp_path, "Qwen2Tokenizer")
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        Tokenizer.from_folder(folder)


@pytest.mark.parametrize("merges", [["a a", "aa a"], ["a "], [" a"], ["a b", "a b"], MERGES[::-1]])
def test_odd_merges_are_read_or_refused_at_once(merges):
    try:
        tokenizer = from_gguf(gguf_metadata(merges=merges))
    except ValueError as error:
        assert len(str(error)) < 500
    else:
        assert tokenizer.decode(tokenizer.encode("aab the")) == "aab the"


def test_a_folder_needs_the_merges_as_well(tmp_path):
    write_folder(tmp_path, "Qwen2Tokenizer")
    (tmp_path / "merges.txt").unlink()
    assert not has_tokenizer(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no tokenizer.json in .* vocab.json with merges"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(ENV not in os.environ, reason=f"{ENV} names no folder")
def test_a_released_folder_encodes_as_transformers_does():
    transformers = pytest.importorskip("transformers")
    folder = os.environ[ENV]
    expected = transformers.Qwen2Tokenizer.from_pretrained(folder)
    tokenizer = Tokenizer.from_folder(folder)
    for text in TEXTS:
        assert tokenizer.encode(text) == expected.encode(text, add_special_tokens=False), text
