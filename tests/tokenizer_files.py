"""A small byte-level vocabulary and a small SentencePiece one, as folders and GGUF metadata have
them. `goldens/tokenizers.json` has the ids that transformers and llama.cpp give with them."""

import json
from pathlib import Path
from typing import Any

PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTES = [
    *map(chr, PRINTED),
    *(chr(256 + i) for i in range(256 - len(PRINTED))),
]
MERGES = (
    """
Ġ t|h e|Ġt he|i n|Ġ a|e r|1 2|12 3|123 4|Ċ Ċ|ĊĊ Ċ|Ġ Ġ|ĠĠ Ġ|! !|!! Ċ|' s|' S|Ã ©|f Ã©|c a|ca fÃ©|n o
t h|th e|I '|l l|' ll|Ġ 1|. Ċ|H T|HT T|a A|/ /|// Ċ|Ġ (|( )|Ġ 12|Ã ¼|e Ì|eÌ ģ|Å ¿|' Å¿|( Ċ
""".strip()
    .replace("\n", "|")
    .split("|")
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
OTHERS = ["<think>", "</think>"]
PLAIN = [*BYTES, *("".join(merge.split(" ")) for merge in MERGES)]
ADDED = {token: len(PLAIN) + i for i, token in enumerate([*CONTROL, *OTHERS])}
ROLES = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "mask_token": "<|mask|>"}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = [
    "",
    " the other  inner\n\n\n café!!\n",
    "1234 12 123412 ١٢٣ ½",
    "I'll it's IT'S '\u017f HTTPaAaA //\n()\n",
    "a\tb\r\n\x00\u2028\u0085",
    "e\u0301 ü Å ﬁ 日本語 👍🏽 нет हिन्दी",
    "<|im_start|>user\nthe<|im_end|><think>x</think> <|mask|>",
    "   the \n  \n",
]

PIECES = [
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("</s>", 0.0, 3),
    *((f"<0x{i:02X}>", 0.0, 6) for i in range(256)),
    ("<|mask|>", 0.0, 4),
    ("    ", 0.0, 4),
    *((piece, -float(i), 1) for i, piece in enumerate(
        "▁t he ▁the in er ▁a ▁▁ ▁in th the ner inner ▁other ot ▁ a b e h i n o r s t é ' 1 2 12"
        .split()
    )),
]  # fmt: skip


def write_folder(folder: Path, kind: str, **config: Any) -> Path:
    """Writes `vocab.json` and the files that belong to it."""
    decoder = {
        str(i): {"content": token, "special": token in CONTROL, "normalized": False}
        for token, i in ADDED.items()
    }
    config = {"tokenizer_class": kind, "added_tokens_decoder": decoder, **ROLES, **config}
    files = {
        "vocab.json": json.dumps({token: i for i, token in enumerate(PLAIN)}),
        "merges.txt": "\n".join(["#version: 0.2", *MERGES, ""]),
        "added_tokens.json": json.dumps(ADDED),
        "tokenizer_config.json": json.dumps(config),
    }
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def gguf_metadata(pre: str | None = "qwen2", **more: Any) -> dict[str, Any]:
    """Returns GGUF metadata of the byte-level vocabulary; keys of `more` lack their prefix."""
    types = [1] * len(PLAIN) + [3] * len(CONTROL) + [4] * len(OTHERS)
    found = {
        "model": "gpt2", "pre": pre, "tokens": [*PLAIN, *ADDED], "token_type": types,
        "merges": MERGES, "bos_token_id": ADDED["<|im_start|>"],
        "eos_token_id": ADDED["<|im_end|>"], "mask_token_id": ADDED["<|mask|>"], **more,
    }  # fmt: skip
    named = {f"tokenizer.ggml.{key}": value for key, value in found.items() if value is not None}
    return {**named, "tokenizer.chat_template": TEMPLATE}


def sentencepiece_metadata(**more: Any) -> dict[str, Any]:
    """Returns GGUF metadata of the SentencePiece vocabulary."""
    tokens, scores, types = map(list, zip(*PIECES, strict=True))
    lists = {"tokens": tokens, "scores": scores, "token_type": types, "merges": None}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "mask_token_id": 259}
    return gguf_metadata(None, model="llama", **{**lists, **ids, **more})


def add_metadata(writer: Any, metadata: dict[str, Any]) -> None:
    """Adds metadata to a `gguf.GGUFWriter`."""
    for key, value in metadata.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
