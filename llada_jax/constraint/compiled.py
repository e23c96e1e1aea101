"""Compiles constraints to automata over a model's tokens, and caches them on disk."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from llada_jax.config import require
from llada_jax.constraint.automaton import (
    FAR,
    MAX_STATES,
    Automaton,
    text_automaton,
    token_automaton,
)
from llada_jax.constraint.batch import CompiledConstraints, Constraints
from llada_jax.constraint.byte_automaton import byte_automaton
from llada_jax.constraint.expression import Node
from llada_jax.constraint.patterns import Constraint
from llada_jax.constraint.schema import JsonSchema
from llada_jax.constraint.spelling import canonical_steps, spelled_tokens
from llada_jax.io.archive import load_archive, save_archive
from llada_jax.io.cache_folder import cache_folder
from llada_jax.text import Tokenizer

_FORMAT = 3  # also raised if a pattern's automaton changes


def compile_constraints(
    constraints: Constraints, tokenizer: Tokenizer | None, ends: Sequence[int], vocab_size: int
) -> CompiledConstraints:
    """Compiles constraints.

    Raises ValueError for values that are not constraints, different kinds of confidence, a model
    without a tokenizer or an end token, and patterns without a text or with a too large automaton.
    """
    rows = (constraints,) if isinstance(constraints, Constraint) else constraints
    is_list = isinstance(rows, Sequence) and len(rows) > 0
    require(
        is_list and all(isinstance(constraint, Constraint) for constraint in rows),
        f"constraint is {constraints!r}; allowed: lj.regex(...), lj.json_schema(...), "
        "lj.choice(...), or a list of them, one for each prompt",
    )
    measures = sorted({constraint.confidence for constraint in rows})
    require(len(measures) == 1, f"the batch has confidences {measures}; allowed: one of them")
    if tokenizer is None:
        raise ValueError("the model has no tokenizer; allowed: a constraint with one")
    require(
        len(ends) > 0, "neither the model nor the sampler names an EOS; allowed: one, as eos_id"
    )
    different = {constraint.texts: constraint for constraint in rows}
    automata = {
        key: compiled(constraint, tokenizer, ends, vocab_size)
        for key, constraint in different.items()
    }
    return CompiledConstraints(tuple(rows), automata)


def compiled(
    constraint: Constraint, tokenizer: Tokenizer, ends: Sequence[int], vocab_size: int
) -> Automaton:
    """Returns the automaton of a constraint over a tokenizer's ids; `ends` are ids that end a text.
    Ids of the model's vocabulary that the tokenizer lacks are never allowed.

    Raises ValueError for an invalid pattern, one with too many states, and one without a text that
    the tokenizer can spell.
    """
    pattern = constraint.pattern
    inputs = [tokenizer.backend.to_str(), *constraint.texts, list(ends), vocab_size, _FORMAT]
    digest = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
    path = cache_folder() / "automata" / f"{digest}.npz"
    automaton = read_automaton(path)
    if automaton is None:
        node = constraint.node
        if node is None:
            assert not isinstance(pattern, str | JsonSchema)
            texts = _encode(pattern, tokenizer)
            automaton = text_automaton(texts, ends, vocab_size, MAX_STATES)
        else:
            canonical = tokenizer if constraint.spelling == "own" else None
            automaton = node_automaton(node, spelled_tokens(tokenizer), ends, vocab_size, canonical)
            require(
                automaton.shortest < FAR,
                f"{pattern!r:.80} has no text that the tokenizer spells; allowed: texts of its "
                "tokens",
            )
        write_automaton(path, automaton)
    return automaton


def _encode(texts: tuple[str, ...], tokenizer: Tokenizer) -> list[list[int]]:
    encoded = [tokenizer.encoding(text).ids for text in texts]
    for text, tokens in zip(texts, encoded, strict=True):
        spelled = tokenizer.decode(tokens, skip_special_tokens=False)
        require(
            spelled == text,
            f"{text!r:.80} has no tokens (the tokenizer makes {spelled!r:.80} of it); allowed: "
            "texts that it spells",
        )
    return encoded


def write_automaton(path: Path, automaton: Automaton) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_archive(path, automaton._asdict(), {}, _FORMAT)


def read_automaton(path: Path) -> Automaton | None:
    """Returns the automaton of a file, or None if there is none. A damaged file, or one of another
    version, is deleted."""
    try:
        arrays, _ = load_archive(path, Automaton._fields, _FORMAT, kind="automaton", short="its")
    except (OSError, ValueError):
        path.unlink(missing_ok=True)
        return None
    return Automaton(**{**arrays, "start": int(arrays["start"])})


def node_automaton(
    node: Node,
    spelled: Mapping[int, bytes],
    ends: Sequence[int],
    vocab: int,
    canonical: Tokenizer | None = None,
) -> Automaton:
    """Returns the automaton of an expression over ids with their bytes. With the tokenizer as
    `canonical`, texts without alternatives must have its tokens. Errors as `compiled`."""
    over_bytes = byte_automaton(node)
    tokens = {i: spelling for i, spelling in spelled.items() if i not in ends}
    only = None if canonical is None else canonical_steps(over_bytes, tokens, canonical)
    return token_automaton(over_bytes, tokens, ends, vocab, only)
