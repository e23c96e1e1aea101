import base64
import json
from typing import Any

import pytest
import tokenizers

from llada_jax.text import Tokenizer
from llada_jax.tokenizer_json import backend_from_json, build_backend, max_text_bytes
from tests.tokenizer_families import FAMILIES

REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 64}
CTC = {"type": "CTC", "pad_token": "a", "word_delimiter_token": "b", "cleanup": True}
BPE = FAMILIES["qwen"]["model"]
WORDS = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
PIECE = {"type": "WordPiece", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
A = {"Sequence": {"id": "A", "type_id": 0}}


def split(pattern: str) -> dict[str, Any]:
    part = {"type": "Split", "behavior": "Isolated", "invert": False}
    return {"pre_tokenizer": part | {"pattern": {"Regex": pattern}}}


def sequence(*normalizers: Any) -> dict[str, Any]:
    return {"normalizer": {"type": "Sequence", "normalizers": list(normalizers)}}


def charsmap(table: bytes) -> dict[str, Any]:
    content = base64.b64encode(table).decode()
    return {"normalizer": {"type": "Precompiled", "precompiled_charsmap": content}}


def nested(levels: int) -> dict[str, Any]:
    part = sequence()
    for _ in range(levels):
        part = sequence(part["normalizer"])
    return part


@pytest.mark.parametrize("family", FAMILIES)
def test_a_familys_tokenizer_encodes_as_the_library_does(family):
    content = json.dumps(FAMILIES[family])
    backend, expected = backend_from_json(content), tokenizers.Tokenizer.from_str(content)
    for text in ("ab a  B\n \u00e9\u4e2d", "", "a<s>b <|im_end|>[CLS]"):
        for add_special_tokens in (False, True):
            found = backend.encode(text, add_special_tokens=add_special_tokens).ids
            assert found == expected.encode(text, add_special_tokens=add_special_tokens).ids
        assert backend.decode(found) == expected.decode(found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": BPE | {"vocab": BPE["vocab"] | {"c": 10**9}}}, "allowed: 0 to 4194303"),
        ({"model": BPE | {"vocab": BPE["vocab"] | {"c": 2**31}}}, "allowed: 0 to 4194303"),
        ({"model": BPE | {"vocab": BPE["vocab"] | {"c": True}}}, "allowed: 0 to 4194303"),
        ({"model": BPE | {"vocab": BPE["vocab"] | {"c": 0}}}, "1 ids twice"),
        ({"model": BPE | {"vocab": BPE["vocab"] | {"c" * 5000: 4}}}, "a token of 5000 characters"),
        ({"model": BPE | {"vocab": {}}}, "cannot build it"),
        ({"model": BPE | {"vocab": {"a": 0, "b": 1}}}, "cannot build it: range end index 2"),
        ({"model": BPE | {"continuing_subword_prefix": "####"}}, "cannot build it: range end"),
        ({"model": BPE | {"continuing_subword_prefix": "#" * 99}}, "text of 0 to 64 characters"),
        ({"model": BPE | {"dropout": 0.5}}, "dropout is 0.5; allowed: 0 or null"),
        (
            {"model": BPE | {"merges": None}},
            "merges is None; allowed: a list of up to 2,",
        ),
        ({"model": BPE | {"type": "Other"}}, "model.type is 'Other'; allowed: BPE, WordPiece"),
        ({"model": None}, "model is None"),
        ({"model": WORDS | {"unk_token": "b"}}, "unk_token is 'b'; allowed: a token of"),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0}}}, "has no unk_token"),
        ({"model": WORDS | PIECE | {"max_input_chars_per_word": 10**9}}, "allowed: 1 to 256"),
        ({"model": {"type": "Unigram", "vocab": [["a" * 257, 0.0]]}}, "up to 256 characters"),
        ({"model": {"type": "Unigram", "vocab": [["a" * 256, 0.0]] * 2**15}}, "8388608 characters"),
        ({"model": {"type": "Unigram", "vocab": []} | {"unk_id": 0}}, "cannot build it"),
        ({"normalizer": {"type": "Prepend", "prepend": "a" * 5_000_000}}, "text of 0 to 64"),
        # The library would take it for a `Prepend`.
        ({"normalizer": {"type": "BertNormalizer", "prepend": "a"}}, "the settings .'prepend'"),
        ({"normalizer": {"prepend": "a"}}, "normalizer is .*; allowed: the types"),
        ({"normalizer": ["NFC"]}, "normalizer is .*; allowed: the types"),
        ({"normalizer": {"type": "Lowercase", "x": 1}}, "has the settings .'x'.; allowed: none"),
        (sequence(*[REPLACE] * 3), "5.243e.05 times as long; allowed: 4096 times"),
        (sequence(*[{"type": "ByteLevel"}] * 13), "1.638e.04 times as long"),
        (sequence(REPLACE | {"pattern": {"String": ""}}), "pattern is .* 1 to 4096 characters"),
        (sequence(None), "normalizer is None"),
        (sequence(*[{"type": "NFC"}] * 65), "more than 64 parts"),
        (nested(9), "nests deeper than 8 levels"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "_"}}, "allowed: base64"),
        (charsmap(b"\0"), "a tree of 0 bytes; allowed: 1 in all"),
        (charsmap((10**9).to_bytes(4, "little")), "a tree of 1000000000 bytes; allowed: 4 in all"),
        (charsmap(bytes(4) + b"a" * 9999), "2e.04 times as long"),
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "allowed: 1 to 4096"),
        (split("["), "Oniguruma error: premature end"),
        (split("(a+)+b"), "failed on repeated characters: .*limit-in-match over"),
        (split("a*a*b"), "failed on repeated characters: no end within 1 CPU-seconds"),
        (split("a" * 5000), "1 to 4096 characters"),
        ({"decoder": {"type": "Strip", "content": "a", "start": 10**9, "stop": 0}}, "0 to 64"),
        ({"decoder": {"type": "Strip", "content": "aa", "start": 0, "stop": 0}}, "1 to 1 char"),
        ({"decoder": REPLACE}, "decoder can make a text 64 times as long; allowed: 16 times"),
        ({"decoder": {"type": "BPEDecoder", "suffix": ""}}, "text of 1 to 64"),
        ({"decoder": CTC | {"word_delimiter_token": ""}}, "text of 1 to 4096"),
        (
            {
                "post_processor": FAMILIES["qwen"]["post_processor"]["processors"][1]
                | {"single": [A, A]}
            },
            "sequences A and B once each",
        ),
        (
            {"post_processor": {"type": "BertProcessing", "sep": ["a", 2**32], "cls": ["a", 0]}},
            "the id below 4194304",
        ),
        ({"added_tokens": 5}, "added_tokens is 5; allowed: a list"),
        ({"added_tokens": [5]}, r"added_tokens\[0\] is 5"),
        ({"added_tokens": [{"id": 0, "content": "a" * 5000}]}, "text of 1 to 4096 characters"),
        ({"added_tokens": [{"id": i, "content": "a" * 4096} for i in range(1025)]}, "4198400 char"),
        ({"added_tokens": [FAMILIES["qwen"]["added_tokens"][0] | {"id": 9}]}, "is 9; allowed: 4"),
        ({"version": "2.0"}, "Unknown tokenizer version '2.0'"),
    ],
)
def test_damage_gives_one_sentence(change, message):
    with pytest.raises(ValueError, match=message):
        build_backend(FAMILIES["qwen"] | change)


@pytest.mark.parametrize("content", ["", "[1]", "[" * 10**5, '{"model": 1, "model": 2}', "NaN"])
def test_other_content_is_refused(content):
    with pytest.raises(ValueError, match="the content is"):
        backend_from_json(content)


def test_the_length_limit_of_a_text_follows_from_the_parts():
    longest = {name: max_text_bytes(build_backend(each)) for name, each in FAMILIES.items()}
    whole = 1 << 24
    assert longest["gpt2"] == whole // 2  # a byte becomes a character of two bytes at most
    assert longest["qwen"] == whole // 6
    assert longest["llama2"] == whole // 12
    hostile = build_backend(FAMILIES["gpt2"] | sequence(REPLACE))
    assert max_text_bytes(hostile) == whole // 128
    with pytest.raises(ValueError, match="131,072 bytes in UTF-8"):
        Tokenizer(hostile, {}).encode("a" * 131_073)


def test_a_model_that_panics_or_fails_gives_one_sentence():
    strip = {"type": "Strip", "content": "a", "start": 0, "stop": 2}
    with pytest.raises(ValueError, match="cannot decode the ids: index out of bounds"):
        Tokenizer(build_backend(FAMILIES["gpt2"] | {"decoder": strip}), {}).decode([0])
    model = {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": None}
    pieces = build_backend({"model": model})
    with pytest.raises(ValueError, match=r"cannot encode the text: .* unknown token"):
        Tokenizer(pieces, {}).encode("b")
