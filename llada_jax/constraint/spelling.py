"""What the tokens of a tokenizer spell, in bytes."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from llada_jax.config import require
from llada_jax.text import Tokenizer


def spelled_tokens(tokenizer: Tokenizer) -> dict[int, bytes]:
    """Returns the bytes of each token that spells some; added tokens spell none.

    Raises ValueError for a tokenizer whose tokens are neither bytes as GPT-2 writes them nor
    SentencePiece's pieces.
    """
    description = json.loads(tokenizer.backend.to_str())
    decoders = set(_types(description["decoder"]))
    in_bytes = "ByteLevel" in decoders
    require(
        in_bytes or bool(decoders & {"ByteFallback", "Metaspace"}),
        f"the tokenizer decodes by {sorted(decoders)}; allowed: ByteLevel, or SentencePiece's",
    )
    added = {token["id"] for token in description["added_tokens"]}
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=False)
    spell = _of_bytes(_byte_of_character()) if in_bytes else _of_piece
    spelled = {i: spell(token) for token, i in vocabulary.items() if i not in added}
    return {i: each for i, each in sorted(spelled.items()) if each}


def _types(decoder: Any) -> Iterator[str]:
    """Yields the type of a decoder, and those of its parts."""
    if decoder:
        yield decoder["type"]
        for each in decoder.get("decoders", ()):
            yield from _types(each)


def _byte_of_character() -> dict[str, int]:
    """Returns GPT-2's characters for bytes: those that print stand for themselves, the others for
    those from 256 on."""
    printed = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (byte for byte in range(256) if byte not in printed)
    return {
        **{chr(byte): byte for byte in printed},
        **{chr(256 + i): byte for i, byte in enumerate(others)},
    }


def _of_bytes(byte_of: dict[str, int]) -> Callable[[str], bytes]:
    def spell(token: str) -> bytes:
        if not all(character in byte_of for character in token):
            return b""
        return bytes(byte_of[character] for character in token)

    return spell


def _of_piece(piece: str) -> bytes:
    """Returns what a piece of SentencePiece spells: `▁` is a space, `<0x0A>` a byte."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("▁", " ").encode()
