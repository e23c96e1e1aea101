"""The bytes of a tokenizer's tokens, and the canonical tokens of parts without alternatives.

A part of a pattern with one possible text, such as a name in a JSON object, can be split into
tokens in many ways, and a model would have to choose. If only the tokenizer's own split is allowed,
each of these positions has one possible token, which can be filled in without a forward pass.
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from llada_jax.config import require
from llada_jax.constraint.byte_automaton import ByteAutomaton
from llada_jax.text import Tokenizer

_LOOKAHEAD = 64  # bytes after a state that are tokenized to find its next token


def spelled_tokens(tokenizer: Tokenizer) -> dict[int, bytes]:
    """Returns the bytes of each token, except added tokens and tokens without bytes.

    Raises ValueError for a tokenizer whose tokens are neither GPT-2's spelling of bytes nor
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
    return {i: spelling for i, spelling in sorted(spelled.items()) if spelling}


def _types(decoder: Any) -> Iterator[str]:
    """Yields the types of a decoder and of its parts."""
    if decoder:
        yield decoder["type"]
        for part in decoder.get("decoders", ()):
            yield from _types(part)


def _byte_of_character() -> dict[str, int]:
    """Returns the byte of each character in GPT-2's spelling: printable bytes are their own
    characters, others are characters from 256 on."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    characters = map(chr, [*printed, *range(256, 256 + len(others))])
    return dict(zip(characters, [*printed, *others], strict=True))


def _of_bytes(byte_of: Mapping[str, int], token: str) -> bytes:
    return bytes(map(byte_of.__getitem__, token)) if byte_of.keys() >= set(token) else b""


def _of_piece(piece: str) -> bytes:
    """Returns the bytes of a SentencePiece piece: `▁` is a space, `<0x0A>` a byte."""
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("▁", " ").encode()


def canonical_steps(
    over_bytes: ByteAutomaton, tokens: Mapping[int, bytes], tokenizer: Tokenizer
) -> dict[int, tuple[int, int]]:
    """Returns the next state and count by the tokenizer's own token, for each state with a single
    next byte and without a counter; `tokens` has the bytes of each id. States for which the
    tokenizer's split begins with other bytes are left out: it may add a space, or complete a
    character that began before."""
    sizes = np.bincount(over_bytes.class_of)
    following = over_bytes.next_state
    is_forced = (np.where(following >= 0, sizes, 0).sum(axis=1) == 1) & ~over_bytes.counts
    is_forced &= over_bytes.accepts_from > 0
    column = following.argmax(axis=1)
    byte = np.argsort(over_bytes.class_of, kind="stable")[np.cumsum(sizes)[column] - 1]
    steps = {}
    for state in map(int, np.flatnonzero(is_forced)):
        path, text = [(state, 0)], b""
        while is_forced[last := path[-1][0]] and len(text) < _LOOKAHEAD:
            text += bytes([byte[last]])
            at = last, column[last]
            path.append((int(following[at]), int(over_bytes.count[at])))
        words = text.rstrip(b" ")  # a final space may share a token with the text after it
        first = tokenizer.encoding(words.decode(errors="ignore")).ids[:1]
        spelled = tokens.get(first[0], b"") if first else b""
        if spelled and words.startswith(spelled):
            steps[state] = path[len(spelled)]
    return steps
