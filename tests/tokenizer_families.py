"""Small tokenizers with the parts of common families: contents of a `tokenizer.json` by name."""

import base64
from typing import Any

_GPT2_BYTES = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_MARK = "\u2581"
_CHARSMAP = base64.b64encode((1024).to_bytes(4, "little") + bytes(1024) + b"\0").decode()
"""SentencePiece's table with a tree that contains nothing."""


def _part(kind: str, **settings: Any) -> dict[str, Any]:
    return {"type": kind, **settings}


def _added(i: int, content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": i, "content": content, **flags, "special": True}


def _template(first: str, i: int) -> dict[str, Any]:
    special = {"SpecialToken": {"id": first, "type_id": 0}}
    a, b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    tokens = {first: {"id": first, "ids": [i], "tokens": [first]}}
    return _part("TemplateProcessing", single=[special, a], pair=[a, b], special_tokens=tokens)


def _bpe(letters: str, *merged: tuple[str, str], **settings: Any) -> dict[str, Any]:
    tokens = [*letters, *("".join(pair) for pair in merged)]
    vocab = {token: i for i, token in enumerate(tokens)}
    return {"vocab": vocab, "merges": [" ".join(pair) for pair in merged], **settings}


def _described(model: dict[str, Any], **sections: Any) -> dict[str, Any]:
    absent = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder"))
    described = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": []}
    return described | absent | sections | {"model": model}


_LLAMA2_VOCAB = [
    "<unk>",
    "<s>",
    _MARK,
    "a",
    "b",
    f"{_MARK}a",
    *(f"<0x{i:02X}>" for i in range(256)),
]

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": _described(  # its file has no type in the model
        _bpe("ab\u0120", ("a", "b"), dropout=None, unk_token=None, fuse_unk=False),
        added_tokens=[_added(4, "<|endoftext|>")],
        pre_tokenizer=_part("ByteLevel", **_GPT2_BYTES),
        post_processor=_part("ByteLevel", **_GPT2_BYTES),
        decoder=_part("ByteLevel", **_GPT2_BYTES),
    ),
    "qwen": _described(
        _bpe("ab\u0120", ("a", "b"), type="BPE", dropout=None, byte_fallback=False)
        | {"ignore_merges": True, "continuing_subword_prefix": "", "end_of_word_suffix": ""},
        added_tokens=[_added(4, "<|im_end|>")],
        normalizer=_part("NFC"),
        pre_tokenizer=_part(
            "Sequence",
            pretokenizers=[
                _part("Split", pattern={"Regex": _QWEN_PATTERN}, behavior="Isolated", invert=False),
                _part("ByteLevel", **_GPT2_BYTES | {"use_regex": False}),
            ],
        ),
        post_processor=_part(
            "Sequence",
            processors=[_part("ByteLevel", **_GPT2_BYTES), _template("<|im_end|>", 4)],
        ),
        decoder=_part("ByteLevel", **_GPT2_BYTES),
    ),
    "llama2": _described(
        {
            **_part("BPE", dropout=None, unk_token="<unk>", fuse_unk=True, byte_fallback=True),
            "vocab": {token: i for i, token in enumerate(_LLAMA2_VOCAB)},
            "merges": [[_MARK, "a"]],
        },
        added_tokens=[_added(0, "<unk>"), _added(1, "<s>")],
        normalizer=_part(
            "Sequence",
            normalizers=[
                _part("Prepend", prepend=_MARK),
                _part("Replace", pattern={"String": " "}, content=_MARK),
            ],
        ),
        post_processor=_template("<s>", 1),
        decoder=_part(
            "Sequence",
            decoders=[
                _part("Replace", pattern={"String": _MARK}, content=" "),
                *(_part("ByteFallback"), _part("Fuse")),
                _part("Strip", content=" ", start=1, stop=0),
            ],
        ),
    ),
    "bert": _described(  # its file has no type in the model
        {
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {"[UNK]": 0, "[CLS]": 1, "a": 2, "##b": 3, "b": 4},
        },
        added_tokens=[_added(0, "[UNK]"), _added(1, "[CLS]")],
        normalizer=_part(
            "BertNormalizer",
            **dict.fromkeys(("clean_text", "handle_chinese_chars", "lowercase"), True),
            strip_accents=None,
        ),
        pre_tokenizer=_part("BertPreTokenizer"),
        post_processor=_template("[CLS]", 1),
        decoder=_part("WordPiece", prefix="##", cleanup=True),
    ),
    "t5": _described(
        _part("Unigram", unk_id=0, vocab=[["<unk>", 0.0], [_MARK, -2], ["a", -2.5], ["ab", -1.0]]),
        added_tokens=[_added(0, "<unk>")],
        normalizer=_part(
            "Sequence",
            normalizers=[
                _part("Precompiled", precompiled_charsmap=_CHARSMAP),
                _part("Strip", strip_left=False, strip_right=True),
                _part("Replace", pattern={"Regex": " {2,}"}, content=_MARK),
            ],
        ),
        pre_tokenizer=_part(
            "Metaspace", replacement=_MARK, prepend_scheme="always", add_prefix_space=True
        ),
        decoder=_part("Metaspace", replacement=_MARK, prepend_scheme="always", split=True),
    ),
    "clip": _described(
        _bpe("ab", type="BPE", dropout=None, end_of_word_suffix="</w>", unk_token="b"),
        normalizer=_part(
            "Sequence",
            normalizers=[
                _part("NFC"),
                _part("Replace", pattern={"Regex": r"\s+"}, content=" "),
                _part("Lowercase"),
            ],
        ),
        pre_tokenizer=_part(
            "Split",
            pattern={"Regex": r"'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"},
            behavior="Removed",
            invert=True,
        ),
        post_processor=_part(
            "RobertaProcessing",
            **{"sep": ["b", 1], "cls": ["a", 0], "trim_offsets": False, "add_prefix_space": False},
        ),
        decoder=_part("BPEDecoder", suffix="</w>"),
    ),
}
