"""What the tokens of a tokenizer spell, in bytes; and what a pattern spells in one way only, in the
tokenizer's own tokens.

Any tokens that spell it would do, and a model had to choose. Held to the tokenizer's own, each of
its positions has one token, which needs no model at all.
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from llada_jax.config import require
from llada_jax.text import Tokenizer

_READ = 64  # bytes ahead, of which the tokenizer's first token counts


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
    spell = partial(_of_bytes, _byte_of_character()) if in_bytes else _of_piece
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
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    characters = map(chr, [*printed, *range(256, 256 + len(others))])
    return dict(zip(characters, [*printed, *others], strict=True))


def _of_bytes(byte_of: Mapping[str, int], token: str) -> bytes:
    return bytes(map(byte_of.__getitem__, token)) if byte_of.keys() >= set(token) else b""


def _of_piece(piece: str) -> bytes:
    """Returns what a piece of SentencePiece spells: `▁` is a space, `<0x0A>` a byte."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("▁", " ").encode()


def own_steps(
    next_state: Int[np.ndarray, "S 256"],
    accepts: Bool[np.ndarray, " S"],
    tokens: Mapping[int, bytes],
    tokenizer: Tokenizer,
) -> dict[int, int]:
    """Returns the state after the tokenizer's own token, of each state that only one byte leaves;
    arguments as `token_automaton`. Left out is a state before which the tokenizer puts other bytes:
    a space, or what would complete a character."""
    alone = ((next_state >= 0).sum(axis=1) == 1) & ~accepts
    byte, found = next_state.argmax(axis=1), {}
    for state in map(int, np.flatnonzero(alone)):
        path, rest = [state], b""
        while alone[path[-1]] and len(rest) < _READ:
            rest += bytes([byte[path[-1]]])
            path.append(int(next_state[path[-1], rest[-1]]))
        words = rest.rstrip(b" ")  # a space at the end may be one token with what follows
        first = tokenizer.encoding(words.decode(errors="ignore")).ids[:1]
        spelled = tokens.get(first[0], b"") if first else b""
        if spelled and words.startswith(spelled):
            found[state] = path[len(spelled)]
    return found
