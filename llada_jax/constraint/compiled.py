"""The automaton of a constraint over a model's tokens, kept on disk between runs."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from llada_jax.config import require
from llada_jax.constraint.automaton import FAR, Automaton, text_automaton, token_automaton
from llada_jax.constraint.byte_automaton import engine_version, of_regex
from llada_jax.constraint.patterns import Constraint
from llada_jax.constraint.spelling import own_steps, spelled_tokens
from llada_jax.io.archive import load_archive, save_archive
from llada_jax.io.cache_folder import cache_folder
from llada_jax.text import Tokenizer

MOST_STATES = 4096
_FORMAT = 2


def compiled(
    constraint: Constraint, tokenizer: Tokenizer, ends: Sequence[int], vocab_size: int
) -> Automaton:
    """Returns the automaton of a constraint over a tokenizer's ids, of which `ends` end a text. Of
    a model's vocabulary, ids beyond the tokenizer's are never allowed.

    Raises ValueError for a pattern that is none, has too many states or has no text that the
    tokenizer spells; ImportError for a regex without the extra.
    """
    described, pattern = tokenizer.backend.to_str(), constraint.pattern
    engine = engine_version() if isinstance(pattern, str) else None
    key = json.dumps([described, *constraint.texts, list(ends), vocab_size, engine])
    kept = cache_folder() / "automata" / f"{hashlib.sha256(key.encode()).hexdigest()}.npz"
    automaton = read_automaton(kept)
    if automaton is None:
        if isinstance(pattern, str):
            own = tokenizer if constraint.spelling == "own" else None
            automaton = automaton_of(pattern, spelled_tokens(tokenizer), ends, vocab_size, own)
        else:
            automaton = text_automaton(_encoded(pattern, tokenizer), ends, vocab_size, MOST_STATES)
        states = len(automaton.transitions)
        require(
            states <= MOST_STATES,
            f"the automaton of {pattern!r:.80} has {states} states; allowed: up to {MOST_STATES}",
        )
        write_automaton(kept, automaton)
    return automaton


def _encoded(texts: tuple[str, ...], tokenizer: Tokenizer) -> list[list[int]]:
    found = [tokenizer.encoding(text).ids for text in texts]
    for text, tokens in zip(texts, found, strict=True):
        spelled = tokenizer.decode(tokens, skip_special_tokens=False)
        require(
            spelled == text,
            f"{text!r:.80} has no tokens (the tokenizer makes {spelled!r:.80} of it); allowed: "
            "texts that it spells",
        )
    return found


def write_automaton(path: Path, automaton: Automaton) -> None:
    """Writes an automaton as one file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_archive(path, automaton._asdict(), {}, _FORMAT)


def read_automaton(path: Path) -> Automaton | None:
    """Returns the automaton of a file; None without one, and for another version or a damaged one,
    which is removed."""
    try:
        arrays, _ = load_archive(path, Automaton._fields, _FORMAT, kind="automaton", short="its")
    except (OSError, ValueError):
        path.unlink(missing_ok=True)
        return None
    return Automaton(**{**arrays, "start": int(arrays["start"])})


def automaton_of(
    pattern: str,
    spelled: Mapping[int, bytes],
    ends: Sequence[int],
    vocab: int,
    own: Tokenizer | None = None,
) -> Automaton:
    """Returns the automaton of a regular expression over ids that spell bytes; what is spelled in
    one way in the `own` tokens of a tokenizer, if one is given. Errors as `compiled`."""
    found = of_regex(pattern)
    table = np.full((found["states"], 256), -1, np.int32)
    state, byte, after = np.array(found["edges"], np.int32).reshape(-1, 3).T
    table[state, byte] = after
    accepts = np.isin(np.arange(len(table)), found["accepts"])
    tokens = {i: each for i, each in spelled.items() if i not in ends}
    only = None if own is None else own_steps(table, accepts, tokens, own)
    automaton = token_automaton(table, found["start"], accepts, tokens, ends, vocab, only)
    require(
        automaton.shortest < FAR,
        f"{pattern!r:.80} has no text that the tokenizer spells; allowed: texts of its tokens",
    )
    return automaton
